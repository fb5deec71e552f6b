//go:build long

package eviction

import (
	"fmt"
	"maps"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/microlet/microlet/compose/e2e/scene"
	"github.com/microlet/microlet/compose/rig"
)

// What the pods of TestSoftThresholds write, in MiB, and what of the disk is short then. Without the larger one the
// threshold is not met any more, but its minimum reclaim is not free.
const (
	larger, smaller = 260, 150
	softRoom        = 350
	softReclaim     = 250
)

// writer is a pod that writes to its volume, and takes some time to end after SIGTERM.
func writer(name string, megabytes int, ends time.Duration) *corev1.Pod {
	const script = "trap 'sleep %d; exit 3' TERM; dd if=/dev/zero of=/volume/file bs=1M count=%d 2>/dev/null"
	p := diskPod(name, fmt.Sprintf(script, int(ends.Seconds()), megabytes)+endless)
	p.Spec.TerminationGracePeriodSeconds = new(int64(40))
	return p
}

func softArgs(t *testing.T) []string {
	t.Helper()
	threshold := freeBytes(func() string { return scene.Shared.RootDir() })(t) - softRoom*mebibyte
	return []string{
		"--eviction-hard=memory.available<1Mi",
		fmt.Sprintf("--eviction-soft=nodefs.available<%d", threshold),
		"--eviction-soft-grace-period=nodefs.available=30s",
		"--eviction-max-pod-grace-period=10",
		fmt.Sprintf("--eviction-minimum-reclaim=nodefs.available=%dMi", softReclaim),
		"--eviction-pressure-transition-period=10s",
	}
}

// evictSoftly shows a soft threshold under the present agent.
func evictSoftly(t *testing.T) (shown []string, codes map[string]int32) {
	t.Helper()
	s := scene.New(t)
	s.Wait(scene.Patience, "a node without pressure", pressureIs(corev1.NodeDiskPressure, corev1.ConditionFalse))
	s.CreatePods(thrifty("thrifty"))
	s.WaitReady(scene.Patience, "thrifty")
	s.SyncRecord()
	mark := s.Record.Mark()
	s.CreatePods(writer("smaller", smaller, time.Minute), writer("larger", larger, 4*time.Second))
	s.WaitReady(scene.Patience, "smaller", "larger")
	s.Wait(2*time.Minute, "the pressure", pressureIs(corev1.NodeDiskPressure, corev1.ConditionTrue))
	for _, p := range s.Record.View().Pods(s.Namespace) {
		if p.Status.Phase != corev1.PodRunning {
			t.Errorf("within the grace period of the threshold, %s", scene.Describe(p))
		}
	}
	s.Wait(3*time.Minute, "the eviction of larger", isEvicted(s, "larger"))
	if p := s.Record.View().Pod(s.Namespace, "smaller"); p.Status.Phase != corev1.PodRunning {
		t.Errorf("larger is evicted, and %s", scene.Describe(p))
	}
	s.Wait(3*time.Minute, "the eviction of smaller", isEvicted(s, "smaller"))
	s.Wait(2*time.Minute, "the end of the pressure", pressureIs(corev1.NodeDiskPressure, corev1.ConditionFalse))
	time.Sleep(eventTime)
	s.WaitReady(scene.Patience, "thrifty")
	codes = map[string]int32{}
	for _, p := range s.Record.View().Pods(s.Namespace) {
		for _, c := range p.Status.ContainerStatuses {
			if end := c.State.Terminated; end != nil && end.Reason != statusUnknown {
				codes[p.Name] = end.ExitCode
			}
		}
	}
	return facts(s, mark), codes
}

// TestSoftThresholds has two pods fill the disk beyond a soft threshold, with the kubelet and with microlet. Both stay
// for the grace period of the threshold. Then the larger goes, and has the time that it takes to end. The smaller goes
// too, because of the minimum reclaim, and is killed after evictionMaxPodGracePeriod. Both agents show the same.
func TestSoftThresholds(t *testing.T) {
	scene.Shared.EnsureUp(t)
	scene.Shared.LinkForCadvisor(t)
	args := softArgs(t)
	shown := map[rig.Agent][]string{}
	t.Cleanup(func() { scene.Shared.SwitchTo(t, scene.FirstAgent) })
	for _, agent := range []rig.Agent{rig.AgentKubelet, rig.AgentMicrolet} {
		scene.Shared.SwitchTo(t, agent, args...)
		t.Run(string(agent), func(t *testing.T) {
			var codes map[string]int32
			shown[agent], codes = evictSoftly(t)
			want := map[string]int32{"larger": 3, "smaller": 137}
			if agent == rig.AgentKubelet {
				// It may remove a container before it has read how the container has ended.
				maps.DeleteFunc(want, func(name string, _ int32) bool { _, known := codes[name]; return !known })
			}
			if d := cmp.Diff(want, codes); d != "" {
				t.Errorf("exit codes: -want +got\n%s", d)
			}
		})
	}
	compare(t, "a soft threshold", shown)
}

// slowHog is a pod that takes memory: much at first, then 5 MiB a second, so that it is evicted before the kernel kills
// it at the limit of all pods.
func slowHog(name string) *corev1.Pod {
	const script = "dd if=/dev/zero of=/mem/much bs=1M count=500 2>/dev/null; sleep 30; " +
		"for i in $(seq 70); do dd if=/dev/zero of=/mem/$i bs=1M count=5 2>/dev/null; sleep 1; done; "
	p := hog(name)
	p.Spec.Containers[0].Command = []string{"sh", "-c", script + scene.Forever}
	return p
}

// TestAllocatableMemory reserves all memory of the node but 1000 MiB. A pod that takes most of what is left to the pods
// is evicted, though the node has much: with the kubelet and with microlet, which show the same.
func TestAllocatableMemory(t *testing.T) {
	shown := map[rig.Agent][]string{}
	for _, agent := range []rig.Agent{rig.AgentKubelet, rig.AgentMicrolet} {
		t.Run(string(agent), func(t *testing.T) {
			scene.Shared.SwitchTo(t, agent,
				fmt.Sprintf("--kube-reserved=memory=%dMi", capacity(t)/mebibyte-1000), "--enforce-node-allocatable=pods",
				"--eviction-hard=memory.available<300Mi", "--eviction-pressure-transition-period="+transition.String())
			t.Cleanup(func() { scene.Shared.SwitchTo(t, scene.FirstAgent) })
			s := scene.New(t)
			s.CreatePods(modest("modest"))
			s.WaitReady(scene.Patience, "modest")
			s.CreatePods(slowHog("hog"))
			shown[agent] = story(s, "hog")
			s.WaitReady(scene.Patience, "modest")
		})
	}
	compare(t, "allocatable memory", shown)
}
