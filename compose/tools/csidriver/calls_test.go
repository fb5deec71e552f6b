package main

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// watched is a watcher, and what is done in its calls.
type watched struct {
	*watcher
	t          *testing.T
	file       string
	done       int
	err        error
	beforeDone func()
}

func newWatched(t *testing.T) *watched {
	t.Helper()
	dir := t.TempDir()
	w := &watched{t: t, file: filepath.Join(dir, "calls")}
	w.restart(filepath.Join(dir, "rules"))
	t.Cleanup(func() { w.close() })
	return w
}

func (w *watched) restart(rules string) {
	w.t.Helper()
	if w.watcher != nil {
		w.close()
	}
	var err error
	if w.watcher, err = newWatcher(w.file, rules); err != nil {
		w.t.Fatal(err)
	}
}

func (w *watched) rule(rules ...rule) {
	w.t.Helper()
	text, err := json.Marshal(rules)
	if err == nil {
		err = os.WriteFile(w.rulesFile, text, 0o600)
	}
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *watched) stage(ctx context.Context, volume string) codes.Code {
	w.t.Helper()
	_, err := w.call(ctx, &csi.NodeStageVolumeRequest{VolumeId: volume, StagingTargetPath: "/staging"},
		&grpc.UnaryServerInfo{FullMethod: "/csi.v1.Node/NodeStageVolume"},
		func(context.Context, any) (any, error) {
			if w.beforeDone != nil {
				w.beforeDone()
			}
			w.done++
			return nil, w.err
		})
	return status.Code(err)
}

func TestRules(t *testing.T) {
	w := newWatched(t)
	want := func(what string, got, code codes.Code, done int) {
		t.Helper()
		if got != code || w.done != done {
			t.Errorf("%s: %v with the work done %d times, want %v and %d", what, got, w.done, code, done)
		}
	}
	want("without a rule", w.stage(t.Context(), "a"), codes.OK, 1)
	w.rule(rule{Volume: "b", Code: codes.Aborted}, rule{Number: 4, After: true, Code: codes.Internal, Message: "no"})
	want("of the volume", w.stage(t.Context(), "b"), codes.Aborted, 1)
	want("of another", w.stage(t.Context(), "a"), codes.OK, 2)
	want("of the number, after the work", w.stage(t.Context(), "a"), codes.Internal, 3)
	w.restart(w.rulesFile)
	if err := os.Remove(w.rulesFile); err != nil {
		t.Fatal(err)
	}
	w.err = status.Error(codes.NotFound, "none")
	want("the driver's own error", w.stage(t.Context(), "a"), codes.NotFound, 4)
	text, err := os.ReadFile(w.file)
	if err != nil {
		t.Fatal(err)
	}
	var last line
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	if err := json.Unmarshal([]byte(lines[len(lines)-1]), &last); err != nil {
		t.Fatal(err)
	}
	if len(lines) != 12 || last.Number != 5 || last.Code != "NotFound" || last.Staging != "/staging" {
		t.Errorf("the file has %d lines, and last %+v", len(lines), last)
	}
}

// A call that is held goes on when its rule is taken back, and ends when its caller goes.
func TestHold(t *testing.T) {
	w := newWatched(t)
	w.rule(rule{Method: "NodeStageVolume", Hold: true})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if got := w.stage(ctx, "a"); got != codes.Canceled || w.done != 0 {
		t.Errorf("its caller has gone: %v, and the work was done %d times", got, w.done)
	}
	w.rule(rule{Hold: true, After: true})
	held := make(chan codes.Code, 1)
	working := make(chan struct{})
	w.beforeDone = func() { close(working) }
	go func() { held <- w.stage(t.Context(), "a") }()
	<-working
	if got := w.stage(t.Context(), "a"); got != codes.Aborted {
		t.Errorf("a call beside it: %v", got)
	}
	if err := os.Remove(w.rulesFile); err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	if got := <-held; got != codes.OK || w.done != 1 {
		t.Errorf("the rule is taken back: %v, and the work was done %d times", got, w.done)
	}
}
