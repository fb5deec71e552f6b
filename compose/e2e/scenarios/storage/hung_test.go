//go:build long

package storage

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/microlet/microlet/compose/e2e/internal/csicalls"
	"github.com/microlet/microlet/compose/e2e/internal/record"
	"github.com/microlet/microlet/compose/e2e/scene"
	"github.com/microlet/microlet/compose/rig"
)

// others is how many pods live beside one whose driver hangs, and half of them have volumes of that driver.
const others = 30

// TestHungDriver: a driver that never answers for one volume delays the pod of that volume alone.
func TestHungDriver(t *testing.T) {
	hung(t, csicalls.Rule{Method: csicalls.Publish, Hold: true})
}

// TestLateDriver: a driver does its work after its caller has given up.
func TestLateDriver(t *testing.T) {
	hung(t, csicalls.Rule{Method: csicalls.Stage, Milliseconds: (3 * time.Minute).Milliseconds()})
}

// hung has a rule for the volume of one pod until the pod says why it waits, and other pods beside it.
func hung(t *testing.T, rule csicalls.Rule) {
	scene.Shared.UseMicrolet(t)
	s := scene.New(t)
	c := s.StartCSI()
	rule.Volume = c.Claim("hung")
	start, end := crowd(s, "before")
	t.Logf("without a call that hangs: p50 of %d pods: Ready after %s, gone after %s", others, start, end)
	c.Rules(rule)
	s.CreatePods(scene.WithClaims(scene.PausePod("hung"), "hung"))
	scene.Await(t, scene.Patience, "the call that hangs", func() error {
		if _, ok := c.Called(rule.Method, rule.Volume, func(l csicalls.Line) bool { return !l.Ends() }); !ok {
			return errors.New("it was not called")
		}
		return nil
	})
	start, end = crowd(s, "beside")
	t.Logf("beside %s that hangs: p50 of %d pods: Ready after %s, gone after %s", rule.Method, others, start, end)
	s.Wait(2*scene.Patience, "why the pod waits", saysWhy(s, "hung"))
	c.Rules()
	s.WaitReady(2*scene.Patience, "hung")
	p := s.Record.View().Pod(s.Namespace, "hung")
	s.DeletePods("hung")
	s.Wait(scene.Patience, "the pod's end", s.AreGone("hung"))
	s.LeavesNothing([]*corev1.Pod{p})
	c.LeavesNoVolume()
	c.DeleteClaims("hung")
	c.KeepsContract()
}

// TestDeadDriver: a driver dies in a call, and its pod goes on as soon as there is another one.
func TestDeadDriver(t *testing.T) {
	scene.Shared.UseMicrolet(t)
	s := scene.New(t)
	c := s.StartCSI()
	c.Claim("data")
	for i, method := range []string{csicalls.Stage, csicalls.Publish, csicalls.Unpublish, csicalls.Unstage} {
		for _, after := range []bool{false, true} {
			name := fmt.Sprintf("pod-%d-%t", i, after)
			c.Rules(csicalls.Rule{Method: method, Exit: true, After: after})
			dies := func() {
				scene.Await(t, scene.Patience, "the end of the driver", func() error {
					if s.ProgramPID(rig.CSIDriver) != 0 {
						return errors.New("it lives")
					}
					return nil
				})
				c.Rules()
				if err := s.Instance.StartCSI(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			s.CreatePods(scene.WithClaims(scene.PausePod(name), "data"))
			if i < 2 {
				dies()
			}
			s.WaitReady(scene.Patience, name)
			p := s.Record.View().Pod(s.Namespace, name)
			s.DeletePods(name)
			if i >= 2 {
				dies()
			}
			s.Wait(scene.Patience, "the pod's end", s.AreGone(name))
			s.LeavesNothing([]*corev1.Pod{p})
			c.LeavesNoVolume()
		}
	}
	c.DeleteClaims("data")
	c.KeepsContract()
}

// crowd starts pods at once and deletes them, and returns the medians of both.
func crowd(s *scene.Scene, name string) (start, end time.Duration) {
	s.T.Helper()
	var pods []*corev1.Pod
	var names []string
	for i := range others {
		p := scene.OnNode(scene.PausePod(fmt.Sprintf("%s-%d", name, i)), s.NodeName())
		if i%2 == 0 {
			scene.WithInline(p, "own")
		}
		pods, names = append(pods, p), append(names, p.Name)
	}
	mark := s.Record.Mark()
	s.CreatePods(pods...)
	s.WaitReady(scene.Patience, names...)
	s.DeletePods(names...)
	s.Wait(scene.Patience, "the end of the other pods", s.AreGone(names...))
	s.SyncRecord()
	var starts, ends []time.Duration
	for _, t := range record.PodTimes(s.Record.Since(mark)) {
		if !t.Created.IsZero() && !t.Gone.IsZero() {
			starts, ends = append(starts, t.Ready.Sub(t.Created)), append(ends, t.Gone.Sub(t.Deleted))
		}
	}
	return scene.Milliseconds(record.Percentile(starts, 0.5)), scene.Milliseconds(record.Percentile(ends, 0.5))
}

// saysWhy returns a condition: an Event of the pod says that its volume is not mounted, since the driver does not
// answer.
func saysWhy(s *scene.Scene, pod string) func(record.View) error {
	return func(v record.View) error {
		var seen []string
		for _, e := range v.Events(s.Namespace, pod) {
			if seen = append(seen, e.Message); e.Reason == "FailedMount" && strings.Contains(e.Message, "DeadlineExceeded") {
				return nil
			}
		}
		return fmt.Errorf("pod %s has only the Events %q", pod, seen)
	}
}
