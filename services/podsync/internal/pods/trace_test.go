package pods

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/microlet/microlet/services/internal/podtrace"
	"github.com/microlet/microlet/services/internal/tracing/spantest"
)

// TestAPodsStartIsATrace of all that podsync does for it, and its end another.
func TestAPodsStartIsATrace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := spantest.New(t)
		n := newNode(t, newRuntime())
		n.dispatcher.deps.Traces = podtrace.New(r.Tracer)
		defer n.run()()
		p := testPod("a")
		n.dispatcher.SetPod(p, api)
		n.wait(time.Second)
		if !n.running("a") {
			t.Fatalf("status %+v", n.statuses["a"])
		}
		started := r.Spans(t)
		root := spantest.Named(started, "syncPod")
		if len(root) == 0 {
			t.Fatalf("recorded %+v", started)
		}
		for name, below := range map[string]string{
			"canAdmitPod": "syncPod", "EnsureImageExists": "syncPod", "WaitForAttachAndMount": "syncPod",
			"createPodSandbox": "syncPod", "startContainer": "syncPod",
		} {
			got := spantest.Named(started, name)
			if len(got) != 1 || got[0].Trace != root[0].Trace || got[0].Parent != root[0].ID {
				t.Errorf("%s is not below %s: %+v", name, below, got)
			}
		}
		if got := spantest.Named(started, "startContainer"); got[0].Attributes["k8s.container.name"] == "" {
			t.Errorf("it does not get which container: %+v", got)
		}

		n.dispatcher.SetPod(deleted(p, 5), api)
		n.wait(time.Minute)
		ended := r.Spans(t)[len(started):]
		of := map[string]bool{}
		for _, name := range []string{"syncTerminatingPod", "syncTerminatedPod"} {
			for _, s := range spantest.Named(ended, name) {
				of[s.Trace] = true
			}
		}
		if len(of) != 1 || of[root[0].Trace] {
			t.Errorf("the end is in %d traces: %+v", len(of), ended)
		}
	})
}

// TestASyncWithoutTracesPaysNothing for being one that could be traced.
func TestASyncWithoutTracesPaysNothing(t *testing.T) {
	w, p, ctx := &worker{deps: &Deps{}}, testPod("a"), t.Context()
	again := time.Duration(0)
	if n := testing.AllocsPerRun(100, func() {
		err := w.traced(ctx, p, "syncPod", func(within context.Context) error {
			again++
			if within != ctx {
				t.Error("the sync has a context of its own")
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
