//go:build long

package eviction

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/microlet/microlet/compose/e2e/internal/record"
	"github.com/microlet/microlet/compose/e2e/scene"
	"github.com/microlet/microlet/compose/rig"
	"github.com/microlet/microlet/proto/role"
)

const (
	// hogs come one after the other.
	hogs = 10
	// hogTime is after when a hog that was not evicted will not be. It has all that it takes after 15 s.
	hogTime = 45 * time.Second
	// podsLimit is the memory of all pods together, and podsThreshold what must be left of it, in MiB. A hog takes the
	// difference in some 7 s. Then the agent has 2.5 s, until the kernel kills for want of memory.
	podsLimit, podsThreshold = 2000, 500
)

// score is how the hogs of a run ended.
type score struct {
	evicted int // without an OOM kill
	killed  int // of which the kernel killed processes
	times   []time.Duration
}

func (c score) String() string {
	if len(c.times) == 0 {
		return fmt.Sprintf("0 of %d evicted in time, OOM kills with %d", hogs, c.killed)
	}
	slices.Sort(c.times)
	return fmt.Sprintf("%d of %d evicted in time, OOM kills with %d; evicted after %s to %s, median %s", c.evicted, hogs,
		c.killed, c.times[0], c.times[len(c.times)-1], c.times[len(c.times)/2])
}

// limited are the arguments of an agent that gives all pods together podsLimit.
func limited(t *testing.T) []string {
	t.Helper()
	return []string{
		fmt.Sprintf("--kube-reserved=memory=%dMi", capacity(t)/mebibyte-podsLimit),
		fmt.Sprintf("--eviction-hard=memory.available<%dMi", podsThreshold),
		"--eviction-pressure-transition-period=1s",
	}
}

// anonymousHog is a pod that takes 200 MiB of memory a second. It is anonymous: the kernel can free it by a kill.
func anonymousHog(name string) *corev1.Pod {
	p := scene.PausePod(name)
	p.Spec.Containers[0].Image = rig.BusyboxImage
	p.Spec.Containers[0].Command = []string{"sh", "-c", fmt.Sprintf("for i in $(seq %d); do "+
		"(dd if=/dev/zero bs=20M count=1 2>/dev/null | sleep 1000) & sleep 0.1; done; %s", full/20, scene.Forever)}
	return p
}

// oomKills is how many processes the kernel has killed for want of memory.
func oomKills(t *testing.T) int64 {
	t.Helper()
	return figure(t, "/proc/vmstat", "oom_kill ")
}

// errRejected says that a pod was refused since the node still had pressure.
var errRejected = errors.New("the pod was rejected at its admission")

// evictedForMemory waits for the eviction of a pod that was admitted.
func evictedForMemory(s *scene.Scene, name string) error {
	rejected := false
	err := s.WaitErr(hogTime, func(v record.View) error {
		if err := isEvicted(s, name)(v); err != nil {
			return err
		}
		rejected = !strings.HasPrefix(v.Pod(s.Namespace, name).Status.Message, "The node was low on resource: memory.")
		return nil
	})
	if rejected {
		return errRejected
	}
	return err
}

// runHogs has the present agent evict hogs beside a pod that keeps to its request.
func runHogs(s *scene.Scene) (c score) {
	s.T.Helper()
	s.CreatePods(modest("modest"))
	s.WaitReady(scene.Patience, "modest")
	for i := 0; i < hogs; {
		name := fmt.Sprintf("hog-%d", i)
		s.Wait(scene.Patience, "a node without pressure", hasPressure(corev1.ConditionFalse))
		before, begin := oomKills(s.T), time.Now()
		s.CreatePods(anonymousHog(name))
		err := evictedForMemory(s, name)
		took, kills := time.Since(begin), oomKills(s.T)-before
		s.DeletePods(name)
		s.Wait(scene.Patience, "the end of "+name, s.AreGone(name))
		if errors.Is(err, errRejected) {
			time.Sleep(time.Second) // the pressure of the last hog has not ended
			continue
		}
		i++
		switch {
		case kills > 0:
			c.killed++
			s.T.Logf("%s: %d OOM kills, eviction: %v", name, kills, err)
		case err != nil:
			s.T.Logf("%s: %v", name, err)
		default:
			c.evicted++
			c.times = append(c.times, scene.Milliseconds(took))
		}
	}
	s.WaitReady(scene.Patience, "modest")
	return c
}

// TestHogs has ten pods take 200 MiB of memory a second, one after the other, with the kubelet, and with microlet while
// stats works, is down and hangs. microlet evicts each of them before the kernel kills, and nothing else.
func TestHogs(t *testing.T) {
	scene.Shared.EnsureUp(t)
	arguments := limited(t)
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
