package object

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"
)

func namedNode(version, zone string) *v1.Node {
	return &v1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "n", ResourceVersion: version, Labels: map[string]string{"zone": zone}},
	}
}

func TestTheNewestNodeCounts(t *testing.T) {
	client := fake.NewClientset(namedNode("5", "watched"))
	o := New(client, "n", func() *v1.Node { return namedNode("", "own") })
	zone := func() string { return o.Node().Labels["zone"] }
	if got := zone(); got != "own" {
		t.Errorf("before the apiserver answers: %s", got)
	}
	early, cancel := context.WithCancel(t.Context())
	cancel()
	if err := o.Wait(early); err == nil {
		t.Error("nothing was received and the caller did not wait")
	}

	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- o.Run(ctx) }()
	defer func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	patient, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if err := o.Wait(patient); err != nil {
		t.Fatal(err)
	}
	if got := zone(); got != "watched" {
		t.Errorf("by the watch: %s", got)
	}
	o.read = namedNode("9", "asked for")
	if got := zone(); got != "asked for" {
		t.Errorf("a newer one that was asked for: %s", got)
	}
	o.read = namedNode("4", "asked for")
	if got := zone(); got != "watched" {
		t.Errorf("an older one that was asked for: %s", got)
	}
	if err := o.Refresh(t.Context()); err != nil || o.read.Labels["zone"] != "watched" {
		t.Errorf("asked for: %v, %v", o.read, err)
	}
}

func TestUntilTheNodeIsAsWanted(t *testing.T) {
	client := fake.NewClientset(namedNode("5", "old"))
	o := New(client, "n", func() *v1.Node { return namedNode("", "own") })
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- o.Run(ctx) }()
	defer func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	in := func(zone string) func(*v1.Node) bool {
		return func(n *v1.Node) bool { return n.Labels["zone"] == zone }
	}
	if err := o.Until(ctx, in("old")); err != nil {
		t.Fatal(err)
	}
	changed := make(chan error, 1)
	go func() { changed <- o.Until(ctx, in("new")) }()
	if _, err := client.CoreV1().Nodes().Update(ctx, namedNode("6", "new"), metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := <-changed; err != nil {
		t.Error(err)
	}
	short, cancel := context.WithCancel(ctx)
	cancel()
	if err := o.Until(short, in("never")); err == nil {
		t.Error("the Node never was so, and the caller did not wait")
	}
}

// answers are those of an API server, in the order of the questions.
type answers []func() *v1.Node

func (a *answers) RoundTrip(*http.Request) (*http.Response, error) {
	next := (*a)[0]
	*a = (*a)[1:]
	text, err := json.Marshal(next())
	return &http.Response{
		StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {"application/json"}},
		Body: io.NopCloser(bytes.NewReader(text)),
	}, err
}

// Two ask at once, and the answer of who asked first comes last.
func TestALateAnswerTakesNothingBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		client, err := kubernetes.NewForConfig(&rest.Config{Host: "http://api.example", Transport: &answers{
			func() *v1.Node { <-release; return namedNode("4", "early") },
			func() *v1.Node { return namedNode("5", "late") },
		}})
		if err != nil {
			t.Fatal(err)
		}
		o := New(client, "n", func() *v1.Node { return namedNode("", "own") })
		first := make(chan error, 1)
		go func() { first <- o.Refresh(t.Context()) }()
		synctest.Wait()
		if err := o.Refresh(t.Context()); err != nil {
			t.Fatal(err)
		}
		close(release)
		if err := <-first; err != nil {
			t.Fatal(err)
		}
		if got := o.Node().Labels["zone"]; got != "late" {
			t.Errorf("the Node is %q", got)
		}
	})
}
