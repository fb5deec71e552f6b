//go:build long

package traces

import (
	"context"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/microlet/microlet/compose/e2e/internal/spans"
	"github.com/microlet/microlet/compose/e2e/scene"
	"github.com/microlet/microlet/proto/role"
)

// TestCollectorDelaysNoPod takes the collector away, and has it hang. Pods start and end meanwhile, and services are
// killed and come back. The spans of the services arrive when the collector is back.
func TestCollectorDelaysNoPod(t *testing.T) {
	for name, test := range map[string]struct{ out, back func(*testing.T) }{
		"away": {
			func(t *testing.T) { must(t, scene.Shared.StopCollector(t.Context())) },
			func(t *testing.T) { must(t, scene.Shared.StartCollector(context.WithoutCancel(t.Context()))) },
		},
		"hung": {
			func(t *testing.T) { must(t, scene.Shared.SignalCollector(unix.SIGSTOP)) },
			func(t *testing.T) { must(t, scene.Shared.SignalCollector(unix.SIGCONT)) },
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := begin(t)
			test.out(t)
			returned := false
			t.Cleanup(func() {
				if !returned {
					test.back(t)
				}
			})
			s.CreatePods(scene.ProbedPod("first", scene.HTTPProbe))
			s.WaitReady(scene.Patience, "first")
			s.Signal(t, syscall.SIGKILL, role.NodeStatus, role.PLEG)
			s.CreatePods(scene.ProbedPod("second", scene.HTTPProbe))
			s.WaitReady(scene.Patience, "second")
			s.WaitHealthy(t, scene.Patience)
			if got := append(s.traces("first"), s.traces("second")...); len(got) > 0 {
				t.Fatalf("the collector has got meanwhile:\n%v", got)
			}
			s.DeletePods("first")
			s.Wait(scene.Patience, "the end of a pod", s.AreGone("first"))
			test.back(t)
			returned = true
			// containerd gives its spans up by itself.
			trace := s.start("second", func(trace spans.Trace) error {
				return whole(without(trace, containerd), "podsync", "prober", "nodestatus")
			})
			t.Logf("%d spans of %v", len(trace), trace.Processes())
			s.keepsSpans(role.Podsync)
			s.keepsSpans(role.Prober)
		})
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
