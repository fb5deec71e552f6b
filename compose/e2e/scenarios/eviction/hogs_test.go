//go:build long

package eviction

import (
	"fmt"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/microlet/microlet/compose/e2e/scene"
	"github.com/microlet/microlet/compose/rig"
	"github.com/microlet/microlet/proto/role"
)

const (
	// hogs come one after the other.
	hogs = 10
	// hogTime is after when a hog that was not evicted will not be. It has all that it takes after 15 s.
	hogTime = 45 * time.Second
)

// score is how the hogs of a run ended.
type score struct {
	evicted int
	times   []time.Duration // from creation to eviction
}

func (c score) String() string {
	if len(c.times) == 0 {
		return fmt.Sprintf("0 of %d evicted", hogs)
	}
	slices.Sort(c.times)
	return fmt.Sprintf("%d of %d evicted, after %s to %s, median %s", c.evicted, hogs, c.times[0],
		c.times[len(c.times)-1], c.times[len(c.times)/2])
}

// runHogs has the present agent evict hogs beside a pod that keeps to its request.
func runHogs(s *scene.Scene) (c score) {
	s.T.Helper()
	s.CreatePods(modest("modest"))
	s.WaitReady(scene.Patience, "modest")
	for i := range hogs {
		name := fmt.Sprintf("hog-%d", i)
		s.Wait(scene.Patience, "a node without pressure", hasPressure(corev1.ConditionFalse))
		s.CreatePods(hog(name))
		begin := time.Now()
		if err := s.WaitErr(hogTime, isEvicted(s, name)); err != nil {
			s.T.Logf("%s: %v", name, err)
		} else {
			c.evicted++
			c.times = append(c.times, scene.Milliseconds(time.Since(begin)))
		}
		s.DeletePods(name)
		s.Wait(scene.Patience, "the end of "+name, s.AreGone(name))
	}
	s.WaitReady(scene.Patience, "modest")
	return c
}

// TestHogs has ten pods take 200 MiB of memory a second, one after the other, with the kubelet, and with microlet while
// stats works, is down and hangs. microlet evicts each of them, and nothing else.
func TestHogs(t *testing.T) {
	scene.Shared.EnsureUp(t)
	arguments := []string{args(t)[0], "--eviction-pressure-transition-period=1s"}
	t.Cleanup(func() { scene.Shared.SwitchTo(t, scene.FirstAgent) })
	for _, run := range []struct {
		name  string
		agent rig.Agent
		hold  func(*scene.Scene, role.Role) func()
	}{
		{"kubelet", rig.AgentKubelet, nil},
		{"microlet", rig.AgentMicrolet, nil},
		{"microlet without stats", rig.AgentMicrolet, (*scene.Scene).HoldDown},
		{"microlet with hung stats", rig.AgentMicrolet, (*scene.Scene).HoldStopped},
	} {
		t.Run(run.name, func(t *testing.T) {
			scene.Shared.SwitchTo(t, run.agent, arguments...)
			s := scene.New(t)
			if run.hold != nil {
				defer s.WaitHealthy(t, scene.Patience)
				defer run.hold(s, role.Stats)()
			}
			c := runHogs(s)
			t.Logf("%s: %s", run.name, c)
			if run.agent == rig.AgentMicrolet && c.evicted < hogs {
				t.Errorf("%s: %s", run.name, c)
			}
		})
	}
}
