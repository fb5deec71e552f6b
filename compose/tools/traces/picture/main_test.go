package main

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/microlet/microlet/compose/tools/traces/span"
)

// made is a span from and to so many milliseconds.
func made(service, name, id, parent string, from, to int) span.Span {
	at := func(ms int) time.Time { return time.Unix(1, 0).UTC().Add(time.Duration(ms) * time.Millisecond) }
	return span.Span{Service: service, Name: name, Trace: "t", ID: id, Parent: parent, Start: at(from), End: at(to)}
}

// start is that of pod a, and what else a receiver may have: the pod's later syncs, and spans that were sent twice.
func start() []span.Span {
	root := made("podsync", "syncPod", "1", "", 0, 400)
	root.Attributes = map[string]string{"k8s.pod.name": "a"}
	later := made("podsync", "syncPod", "9", "", 5000, 5100)
	later.Trace, later.Attributes = "u", root.Attributes
	fails := made("prober", "doProbe <b>", "4", "1", 420, 450)
	fails.Error, fails.Attributes = "no & no", map[string]string{"k8s.container.name": "c"}
	patch := made("podsync", "HTTP PATCH", "6", "1", 460, 470)
	patch.Attributes = map[string]string{"url.full": "https://10.0.0.1:6443/api/v1/namespaces/ns/pods/a/status"}
	return []span.Span{
		later, made("containerd", "runtime.v1.RuntimeService/RunPodSandbox", "3", "2", 11, 390), fails,
		made("podsync", "createPodSandbox", "2", "1", 10, 400), made("podsync", "canAdmitPod", "5", "1", 1, 1),
		patch, root, root,
	}
}

func picture(t *testing.T, spans []span.Span, pod string) (string, error) {
	t.Helper()
	var in bytes.Buffer
	for _, s := range spans {
		line, err := json.Marshal(s)
		if err != nil {
			t.Fatal(err)
		}
		in.Write(append(line, '\n'))
	}
	out := filepath.Join(t.TempDir(), "x.svg")
	if err := run(&in, pod, out, time.Millisecond); err != nil {
		return "", err
	}
	text, err := os.ReadFile(out)
	return string(text), err
}

func TestAStartIsDrawnFromTheTop(t *testing.T) {
	svg, err := picture(t, start(), "a")
	if err != nil {
		t.Fatal(err)
	}
	for d := xml.NewDecoder(strings.NewReader(svg)); ; {
		if _, err := d.Token(); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatalf("it is no XML: %v", err)
		}
	}
	at := 0
	for _, want := range []string{
		"one trace of 6 spans over 3 processes; 1 that took less than 1ms are left out",
		">podsync<", ">containerd<", ">prober<", ">0s<", ">400ms<",
		">syncPod<", ">400ms<", ">createPodSandbox<", ">RuntimeService/RunPodSandbox<", ">379ms<", ">doProbe &lt;b&gt; c<",
		"failed: no &amp; no", failed, ">HTTP PATCH pods/a/status<",
	} {
		next := strings.Index(svg[at:], want)
		if next < 0 {
			t.Fatalf("%q is missing, or too early, in:\n%s", want, svg)
		}
		at += next
	}
	if strings.Contains(svg, ">canAdmitPod<") || strings.Contains(svg, ">5s<") {
		t.Error("it shows what is too short, or of another trace")
	}
}

func TestWhatIsNotWholeIsNotDrawn(t *testing.T) {
	if _, err := picture(t, start(), "b"); err == nil || !strings.Contains(err.Error(), "pod b") {
		t.Errorf("a pod without a trace: %v", err)
	}
	orphan := append(start(), made("prober", "doProbe", "7", "8", 1, 2))
	if _, err := picture(t, orphan, "a"); err == nil || !strings.Contains(err.Error(), "not whole") {
		t.Errorf("a trace with an orphan: %v", err)
	}
}

func TestTicksAreRoundAndFew(t *testing.T) {
	for took, want := range map[time.Duration]time.Duration{
		time.Millisecond: time.Millisecond, 95 * time.Millisecond: 10 * time.Millisecond,
		450 * time.Millisecond: 50 * time.Millisecond, 1900 * time.Millisecond: 200 * time.Millisecond,
	} {
		if got := tick(took); got != want {
			t.Errorf("%v has a step of %v, want %v", took, got, want)
		}
	}
}
