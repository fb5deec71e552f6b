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

// others is how many pods live beside one with a driver that hangs. Half of them have volumes of that driver.
const others = 30

// TestHungDriver: a driver that never answers for one volume delays the pod of that volume alone.
func TestHungDriver(t *testing.T) {
	hung(t, csicalls.Rule{Method: csicalls.Publish, Hold: true})
}

// TestLateDriver: a driver does its work after its caller has given up.
func TestLateDriver(t *testing.T) {
	hung(t, csicalls.Rule{Method: csicalls.Stage, Milliseconds: (3 * time.Minute).Milliseconds()})
}

// hung has the driver hang in the volume of one pod, again and again, and starts other pods beside it and without it.
// Only the last call of the driver is ruled: it goes on until the pod says why it waits. Those before are held, and are
// answered when the other pods are gone.
func hung(t *testing.T, rule csicalls.Rule) {
	scene.Shared.UseMicrolet(t)
	s := scene.New(t)
	c := s.StartCSI()
	rule.Volume = c.Claim("hung")
	held := csicalls.Rule{Method: rule.Method, Volume: rule.Volume, Hold: true}
	s.Sample(crowd(s, "first"), func() {}) // what is slow only once is not measured
	var without, beside []scene.Sample
	for i := range scene.Samples {
		name, last := fmt.Sprintf("hung-%d", i), i == scene.Samples-1
		without = append(without, s.Sample(crowd(s, "without"), func() {}))
		if last {
			held = rule
		}
		c.Rules(held)
		s.CreatePods(scene.WithClaims(scene.PausePod(name), "hung"))
		scene.Await(t, scene.Patience, "the call that hangs", func() error { return isUnderWay(c, rule) })
		beside = append(beside, s.Sample(crowd(s, "beside"), func() {}))
		if p := s.Record.View().Pod(s.Namespace, name); p.Status.Phase != corev1.PodPending {
			t.Errorf("the pod is %s although its volume hangs", scene.Describe(p))
		}
		if last {
			s.Wait(2*scene.Patience, "why the pod waits", saysWhy(s, name))
		}
		c.Rules()
		s.WaitReady(2*scene.Patience, name)
		p := s.Record.View().Pod(s.Namespace, name)
		s.DeletePods(name)
		s.Wait(scene.Patience, "the pod's end", s.AreGone(name))
		s.LeavesNothing([]*corev1.Pod{p})
		c.LeavesNoVolume()
	}
	s.LogSamples(fmt.Sprintf("%d pods beside a hung %s", others, rule.Method), without, beside)
	c.DeleteClaims("hung")
	c.KeepsContract()
}

// isUnderWay says that the driver has no call that a rule is for.
func isUnderWay(c *scene.CSI, rule csicalls.Rule) error {
	last, called := c.Called(rule.Method, rule.Volume, func(csicalls.Line) bool { return true })
	if !called || last.Ends() {
		return errors.New("it was not called")
	}
	return nil
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

// crowd is of pods that live beside what hangs.
func crowd(s *scene.Scene, name string) (pods []*corev1.Pod) {
	for i := range others {
		p := scene.OnNode(scene.PausePod(fmt.Sprintf("%s-%d", name, i)), s.NodeName())
		if i%2 == 0 {
			scene.WithInline(p, "own")
		}
		pods = append(pods, p)
	}
	return pods
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
