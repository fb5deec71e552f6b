//go:build long

package eviction

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/microlet/microlet/compose/e2e/internal/record"
	"github.com/microlet/microlet/compose/e2e/scene"
	"github.com/microlet/microlet/compose/rig"
	"github.com/microlet/microlet/proto/role"
)

const (
	mebibyte = 1 << 20
	// room is what a hog may take before the threshold is met, in MiB, and full is what it takes if nothing stops it.
	room, full = 1500, 3000
	// transition is evictionPressureTransitionPeriod.
	transition = 20 * time.Second
)

// figure reads a number behind a name.
func figure(t *testing.T, path, name string) int64 {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Skipf("the test reads cgroup v1: %v", err)
	}
	found := regexp.MustCompile(`(?m)^` + name + `\s*(\d+)`).FindStringSubmatch(string(text))
	if found == nil {
		t.Fatalf("%s has no %q", path, name)
	}
	n, err := strconv.ParseInt(found[1], 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// capacity is the machine's memory in bytes.
func capacity(t *testing.T) int64 {
	t.Helper()
	return figure(t, "/proc/meminfo", "MemTotal:") << 10
}

// available is the node's memory without its working set, as the kubelet has it, in bytes.
func available(t *testing.T) int64 {
	t.Helper()
	const cgroup = "/sys/fs/cgroup/memory/"
	return capacity(t) - figure(t, cgroup+"memory.usage_in_bytes", "") +
		figure(t, cgroup+"memory.stat", "total_inactive_file")
}

// args are the agent's, with a threshold that a hog meets.
func args(t *testing.T) []string {
	t.Helper()
	return []string{
		fmt.Sprintf("--eviction-hard=memory.available<%dMi", available(t)/mebibyte-room),
		"--eviction-pressure-transition-period=" + transition.String(),
	}
}

// hog is a pod that takes 200 MiB of memory a second.
func hog(name string) *corev1.Pod {
	p := scene.PausePod(name)
	// It does not heed SIGTERM: a container that ends well makes its pod a success, with the kubelet too.
	p.Spec.Containers[0].Image = rig.BusyboxImage
	p.Spec.Containers[0].Command = []string{"sh", "-c", fmt.Sprintf("for i in $(seq %d); do "+
		"dd if=/dev/zero of=/mem/$i bs=1M count=20 2>/dev/null; sleep 0.1; done; %s", full/20, scene.Forever)}
	p.Spec.Volumes = []corev1.Volume{{Name: "mem", VolumeSource: corev1.VolumeSource{
		EmptyDir: &corev1.EmptyDirVolumeSource{Medium: corev1.StorageMediumMemory},
	}}}
	p.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "mem", MountPath: "/mem"}}
	return p
}

// modest is a pod that takes less than it requests.
func modest(name string) *corev1.Pod {
	p := scene.PausePod(name)
	p.Spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("50Mi")}
	return p
}

// isEvicted waits for the eviction, with its event.
func isEvicted(s *scene.Scene, name string) func(record.View) error {
	return func(v record.View) error {
		p := v.Pod(s.Namespace, name)
		if p == nil || p.Status.Phase != corev1.PodFailed {
			return fmt.Errorf("pod %s is %s", name, scene.Describe(p))
		}
		return s.HasEvent(name, "Evicted")(v)
	}
}

// hasPressure waits for the condition MemoryPressure.
func hasPressure(status corev1.ConditionStatus) func(record.View) error {
	return func(v record.View) error {
		n := v.Node()
		if n == nil {
			return errors.New("there is no Node")
		}
		for _, c := range n.Status.Conditions {
			if c.Type == corev1.NodeMemoryPressure {
				if c.Status == status {
					return nil
				}
				return fmt.Errorf("MemoryPressure is %s: %s", c.Status, c.Reason)
			}
		}
		return errors.New("the Node has no condition MemoryPressure")
	}
}

var amount = regexp.MustCompile(`\d+(\.\d+)?([KMG]i)?`)

// story is what an eviction shows, without its amounts.
func story(s *scene.Scene, name string) (lines []string) {
	s.T.Helper()
	s.Wait(2*time.Minute, "the eviction of "+name, isEvicted(s, name))
	s.Wait(time.Minute, "the pressure", hasPressure(corev1.ConditionTrue))
	s.Wait(2*time.Minute, "the end of the pressure", hasPressure(corev1.ConditionFalse))
	_ = s.WaitErr(time.Second, func(v record.View) error {
		lines = nil
		p := v.Pod(s.Namespace, name)
		lines = append(lines, fmt.Sprintf("%s %s: %s", p.Status.Phase, p.Status.Reason, p.Status.Message))
		for _, c := range p.Status.Conditions {
			if c.Type == corev1.DisruptionTarget {
				lines = append(lines, fmt.Sprintf("%s %s %s: %s", c.Type, c.Status, c.Reason, c.Message))
			}
		}
		for _, e := range v.Events(s.Namespace, name) {
			if e.Reason == "Evicted" {
				lines = append(lines, fmt.Sprintf("event %s %s: %s", e.Type, e.Reason, e.Message))
				for _, key := range slices.Sorted(maps.Keys(e.Annotations)) {
					lines = append(lines, "annotation "+key+"="+e.Annotations[key])
				}
			}
		}
		for _, c := range v.Node().Status.Conditions {
			if strings.HasSuffix(string(c.Type), "Pressure") {
				lines = append(lines, fmt.Sprintf("%s %s %s: %s", c.Type, c.Status, c.Reason, c.Message))
			}
		}
		return nil
	})
	for i := range lines {
		lines[i] = amount.ReplaceAllString(lines[i], "N")
	}
	return lines
}

// TestMemoryHog has a hog take memory beside a pod that takes what it requests: with the kubelet and with microlet the
// hog goes and the other stays, and both show the same.
func TestMemoryHog(t *testing.T) {
	stories := map[rig.Agent][]string{}
	for _, agent := range []rig.Agent{rig.AgentKubelet, rig.AgentMicrolet} {
		t.Run(string(agent), func(t *testing.T) {
			scene.Shared.SwitchTo(t, agent, args(t)...)
			t.Cleanup(func() { scene.Shared.SwitchTo(t, rig.AgentMicrolet) })
			s := scene.New(t)
			s.CreatePods(modest("modest"))
			s.WaitReady(scene.Patience, "modest")
			s.CreatePods(hog("hog"))
			stories[agent] = story(s, "hog")
			s.WaitReady(scene.Patience, "modest")
		})
	}
	if want, got := stories[rig.AgentKubelet], stories[rig.AgentMicrolet]; !slices.Equal(got, want) {
		t.Errorf("microlet:\n%s\nthe kubelet:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// TestMemoryHogWithoutStats keeps stats down: evictor reads what it needs itself.
func TestMemoryHogWithoutStats(t *testing.T) {
	scene.Shared.UseMicrolet(t, args(t)...)
	s := scene.New(t)
	s.CreatePods(modest("modest"))
	s.WaitReady(scene.Patience, "modest")
	release := s.HoldDown(role.Stats)
	s.CreatePods(hog("hog"))
	s.Wait(2*time.Minute, "the eviction of hog", isEvicted(s, "hog"))
	release()
	s.WaitHealthy(t, scene.Patience)
	s.WaitReady(scene.Patience, "modest")
}

// TestMemoryHogWithoutEvictor keeps evictor hung: nothing is evicted and the pressure is what it was, until evictor is
// back, and then the hog goes within 15 s, alone. An evictor that is killed is back within a second.
func TestMemoryHogWithoutEvictor(t *testing.T) {
	scene.Shared.UseMicrolet(t, args(t)...)
	s := scene.New(t)
	s.Wait(scene.Patience, "a node without pressure", hasPressure(corev1.ConditionFalse))
	s.CreatePods(modest("modest"))
	s.WaitReady(scene.Patience, "modest")
	release := s.HoldStopped(role.Evictor)
	mark := s.Record.Mark()
	s.CreatePods(hog("hog"))
	s.WaitReady(scene.Patience, "hog")
	if err := s.WaitErr(40*time.Second, isEvicted(s, "hog")); err == nil {
		t.Error("hog was evicted without evictor")
	}
	pressureHeld(s, mark)
	release()
	s.Wait(15*time.Second, "the eviction of hog", isEvicted(s, "hog"))
	s.WaitHealthy(t, scene.Patience)
	s.WaitReady(scene.Patience, "modest")
}

// pressureHeld judges that the node has never said anything else than that it has memory enough.
func pressureHeld(s *scene.Scene, mark record.Mark) {
	s.T.Helper()
	s.SyncRecord()
	for _, e := range s.Record.Since(mark) {
		n, ok := e.Object.(*corev1.Node)
		if !ok {
			continue
		}
		for _, c := range n.Status.Conditions {
			if c.Type == corev1.NodeMemoryPressure && c.Status != corev1.ConditionFalse {
				s.T.Errorf("without evictor, %s is %s: %s: %s", c.Type, c.Status, c.Reason, c.Message)
			}
		}
	}
}
