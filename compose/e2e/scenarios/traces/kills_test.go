//go:build long

package traces

import (
	"errors"
	"fmt"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/microlet/microlet/compose/e2e/internal/record"
	"github.com/microlet/microlet/compose/e2e/internal/spans"
	"github.com/microlet/microlet/compose/e2e/scene"
	"github.com/microlet/microlet/proto/role"
)

// waiting is a pod that is ready once it has a file.
func waiting(name string) *corev1.Pod {
	p := scene.ScriptPod(name, "mkdir -p /tmp/www; httpd -p 8080 -h /tmp/www; "+scene.Forever)
	p.Spec.Containers[0].ReadinessProbe = &corev1.Probe{
		PeriodSeconds: 1, TimeoutSeconds: 5, ProbeHandler: scene.HTTPProbe,
	}
	return p
}

func (s *tracing) makeReady(pod string) {
	s.T.Helper()
	s.KubectlComesToPrint("", "exec", pod, "--", "touch", "/tmp/www/ok")
	s.WaitReady(scene.Patience, pod)
}

// awaitProbe waits until a process of the prober has a span in the trace of a pod's start.
func (s *tracing) awaitProbe(pod, process string) {
	s.T.Helper()
	s.start(pod, func(trace spans.Trace) error {
		if trace.Processes()[process] == 0 {
			return fmt.Errorf("nothing of %s in:\n%v", process, trace)
		}
		return nil
	})
}

// TestKilledServicesLoseTheirOwnSpans kills the prober, and nodestatus, through which all spans go, while a pod starts.
// The trace continues with their successors, and has all spans of the other services.
func TestKilledServicesLoseTheirOwnSpans(t *testing.T) {
	s := begin(t)
	s.CreatePods(waiting("web"))
	s.awaitProbe("web", s.process(role.Prober))
	podsync := s.process(role.Podsync)
	killed := time.Now()
	s.Signal(t, syscall.SIGKILL, role.Prober, role.NodeStatus)
	s.WaitHealthy(t, scene.Patience)
	s.awaitProbe("web", s.process(role.Prober))
	s.makeReady("web")
	trace := s.start("web", func(trace spans.Trace) error {
		if err := whole(trace, "podsync", containerd, "prober", "nodestatus"); err != nil {
			return err
		}
		for _, sync := range trace.Of("podsync", spans.Sync) {
			if sync.Start.After(killed) {
				return nil
			}
		}
		return errors.New("no sync since the kill")
	})
	for _, wrong := range trace.Wrong() {
		t.Error(wrong)
	}
	if trace.Processes()[podsync] == 0 || s.process(role.Podsync) != podsync {
		t.Errorf("podsync was not to be killed: %v", trace.Processes())
	}
	s.keepsSpans(role.Podsync)
	s.keepsSpans(role.Prober)
	t.Logf("%d spans of %v", len(trace), trace.Processes())
}

// TestKilledPodsyncBeginsAnotherTrace: what it had not sent lacks, and only what was begun in that has no parent. The
// pod becomes ready, in a trace that its successor begins.
func TestKilledPodsyncBeginsAnotherTrace(t *testing.T) {
	s := begin(t)
	s.CreatePods(waiting("web"))
	s.Wait(scene.Patience, "a running container", func(v record.View) error {
		for _, c := range s.ContainerStatuses(v, "web") {
			if c.State.Running != nil {
				return nil
			}
		}
		return errors.New("it does not run")
	})
	s.Signal(t, syscall.SIGKILL, role.Podsync)
	s.WaitHealthy(t, scene.Patience)
	s.makeReady("web")
	successor := s.process(role.Podsync)
	scene.Await(t, scene.Patience, "a whole trace of the successor", func() error {
		for _, trace := range s.traces("web") {
			if trace.Processes()[successor] > 0 && whole(trace, containerd) == nil {
				return nil
			}
		}
		return errors.New("there is none")
	})
	for _, trace := range s.traces("web") {
		for _, o := range trace.Orphans() {
			if o.Service == "podsync" || o.Kind == "server" || o.Name == spans.Probe || o.Name == spans.Delivery {
				continue // it may have been begun in a span of podsync
			}
			t.Errorf("a span of a service that was not killed lacks: the parent of %+v", o)
		}
	}
	s.keepsSpans(role.Prober)
	s.keepsSpans(role.NodeStatus)
}
