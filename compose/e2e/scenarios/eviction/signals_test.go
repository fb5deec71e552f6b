//go:build long

package eviction

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/microlet/microlet/compose/e2e/internal/record"
	"github.com/microlet/microlet/compose/e2e/scene"
	"github.com/microlet/microlet/compose/rig"
)

// What a hog may take of each before the threshold is met. It takes half as much again.
const (
	roomBytes  = 200 << 20
	roomInodes = 20_000
	roomPIDs   = 3000
)

// eventTime is more than an Event takes after the condition that it is about.
const eventTime = 5 * time.Second

// cause is a signal, and what makes it fall below its threshold.
type cause struct {
	signal    string
	condition corev1.NodeConditionType
	// available is what is there of it now.
	available func(t *testing.T) int64
	// room is how much of it the hog may take.
	room int64
	// script is what the hog does.
	script string
}

// statusUnknown is the reason of a container that has ended before its status was read.
const statusUnknown = "ContainerStatusUnknown"

// endless is how a hog goes on. It exits with an error when it gets SIGTERM, because a container that exits with 0
// makes its pod a success.
const endless = "; " + scene.Forever

func causes() []cause {
	// Each takes a little first. The kubelet ranks by figures that are up to 15 s old, and of a young pod it has none: it
	// shall know which pod takes more.
	const write = "trap 'exit 3' TERM; dd if=/dev/zero of=%[1]s0 bs=1M count=20 2>/dev/null; sync; sleep 30; " +
		"dd if=/dev/zero of=%[1]s bs=1M count=%[2]d 2>/dev/null" + endless
	const create = "trap 'exit 3' TERM; mkdir -p %[1]s; i=0; while [ $i -lt %[2]d ]; do : >%[1]s/$i; i=$((i+1)); " +
		"[ $i -ne 1000 ] || sleep 30; done" + endless
	const fork = "trap 'exit 3' TERM; i=0; while [ $i -lt %d ]; do sleep 3600 & i=$((i+1)); " +
		"[ $i -ne 100 ] || sleep 30; done" + endless
	much := func(room int64) int64 { return room * 3 / 2 }
	node, image := func() string { return scene.Shared.RootDir() }, func() string {
		return filepath.Join(scene.Shared.Dir(), "containerd")
	}
	return []cause{
		{"nodefs.available", corev1.NodeDiskPressure, freeBytes(node), roomBytes,
			fmt.Sprintf(write, "/volume/file", much(roomBytes)/mebibyte)},
		{"nodefs.inodesFree", corev1.NodeDiskPressure, freeInodes(node), roomInodes,
			fmt.Sprintf(create, "/volume/files", much(roomInodes))},
		{"imagefs.available", corev1.NodeDiskPressure, freeBytes(image), roomBytes,
			fmt.Sprintf(write, "/file", much(roomBytes)/mebibyte)},
		{"imagefs.inodesFree", corev1.NodeDiskPressure, freeInodes(image), roomInodes,
			fmt.Sprintf(create, "/files", much(roomInodes))},
		{"pid.available", corev1.NodePIDPressure, freePIDs, roomPIDs, fmt.Sprintf(fork, much(roomPIDs))},
	}
}

func freeBytes(dir func() string) func(t *testing.T) int64 {
	return func(t *testing.T) int64 {
		st := statfs(t, dir())
		return int64(st.Bavail) * st.Bsize
	}
}

func freeInodes(dir func() string) func(t *testing.T) int64 {
	return func(t *testing.T) int64 {
		st := statfs(t, dir())
		return int64(st.Ffree)
	}
}

func statfs(t *testing.T, dir string) (st unix.Statfs_t) {
	t.Helper()
	if err := unix.Statfs(dir, &st); err != nil {
		t.Fatalf("statfs %s: %v", dir, err)
	}
	return st
}

// freePIDs is how many threads this machine may still start.
func freePIDs(t *testing.T) int64 {
	t.Helper()
	value := func(file, pattern string) int64 {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		found := regexp.MustCompile(pattern).FindSubmatch(text)
		if found == nil {
			t.Fatalf("%s has no %q", file, pattern)
		}
		n, err := strconv.ParseInt(string(found[1]), 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	return min(value("/proc/sys/kernel/pid_max", `(\d+)`), value("/proc/sys/kernel/threads-max", `(\d+)`)) -
		value("/proc/loadavg", `/(\d+)`)
}

// signalArgs are an agent's with a threshold for each cause.
func signalArgs(t *testing.T, all []cause) []string {
	t.Helper()
	var thresholds []string
	for _, c := range all {
		thresholds = append(thresholds, fmt.Sprintf("%s<%d", c.signal, c.available(t)-c.room))
	}
	return []string{
		"--eviction-hard=" + strings.Join(thresholds, ","),
		"--eviction-pressure-transition-period=10s",
		// The bomb harms no other pod if the eviction fails.
		fmt.Sprintf("--pod-max-pids=%d", 2*roomPIDs),
	}
}

// diskPod is a pod with a volume that runs a script.
func diskPod(name, script string) *corev1.Pod {
	p := scene.ScriptPod(name, script)
	p.Spec.Volumes = []corev1.Volume{{
		Name: "volume", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}}
	p.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "volume", MountPath: "/volume"}}
	return p
}

// thrifty is a pod that takes some of each, within what it requests.
func thrifty(name string) *corev1.Pod {
	p := diskPod(name, "dd if=/dev/zero of=/volume/file bs=1M count=5; dd if=/dev/zero of=/file bs=1M count=5"+endless)
	p.Spec.Containers[0].Resources.Requests = corev1.ResourceList{
		corev1.ResourceEphemeralStorage: resource.MustParse("50Mi")}
	return p
}

// pressureIs waits for a condition of the node, and for the taint that goes with it.
func pressureIs(kind corev1.NodeConditionType, status corev1.ConditionStatus) func(record.View) error {
	return func(v record.View) error {
		n := v.Node()
		if n == nil {
			return errors.New("there is no Node")
		}
		i := slices.IndexFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool { return c.Type == kind })
		if i < 0 || n.Status.Conditions[i].Status != status {
			return fmt.Errorf("%s is not %s: %+v", kind, status, n.Status.Conditions)
		}
		pressure := func(t corev1.Taint) bool { return strings.HasSuffix(t.Key, "-pressure") }
		if has := slices.ContainsFunc(n.Spec.Taints, pressure); has != (status == corev1.ConditionTrue) {
			return fmt.Errorf("the taints do not go with %s %s: %+v", kind, status, n.Spec.Taints)
		}
		return nil
	}
}

// facts are what a scene shows of an eviction, without amounts, one line each.
func facts(s *scene.Scene, mark record.Mark) (lines []string) {
	s.T.Helper()
	s.SyncRecord()
	note := func(format string, args ...any) {
		line := amount.ReplaceAllString(fmt.Sprintf(format, args...), "N")
		if !slices.Contains(lines, line) {
			lines = append(lines, line)
		}
	}
	for _, e := range s.Record.Since(mark) {
		switch o := e.Object.(type) {
		case *corev1.Node:
			for _, c := range o.Status.Conditions {
				if strings.HasSuffix(string(c.Type), "Pressure") {
					note("node %s=%s %s: %s", c.Type, c.Status, c.Reason, c.Message)
				}
			}
			for _, taint := range o.Spec.Taints {
				note("node taint %s", taint.ToString())
			}
		case *corev1.Event:
			switch {
			case o.InvolvedObject.Kind == "Node":
				note("node event %s %s: %s", o.Type, o.Reason, strings.ReplaceAll(o.Message, s.NodeName(), "NODE"))
			case o.Reason == "Evicted" || o.Reason == "Killing":
				note("pod %s event %s %s: %s %v", o.InvolvedObject.Name, o.Type, o.Reason, o.Message, o.Annotations)
			}
		}
	}
	for _, p := range s.Record.View().Pods(s.Namespace) {
		note("pod %s %s %s: %s", p.Name, p.Status.Phase, p.Status.Reason, p.Status.Message)
		for _, c := range p.Status.Conditions {
			note("pod %s %s=%s %s: %s", p.Name, c.Type, c.Status, c.Reason, c.Message)
		}
		for _, c := range p.Status.ContainerStatuses {
			// The kubelet may remove a container of an evicted pod before it has read how the container has ended.
			if end := c.State.Terminated; end != nil && end.Reason != statusUnknown {
				note("pod %s container %s ended with %d %s", p.Name, c.Name, end.ExitCode, end.Reason)
			}
		}
	}
	slices.Sort(lines)
	return lines
}

// evictHog shows one cause under the present agent.
func evictHog(t *testing.T, c cause) []string {
	t.Helper()
	s := scene.New(t)
	s.Wait(scene.Patience, "a node without pressure", pressureIs(c.condition, corev1.ConditionFalse))
	s.CreatePods(thrifty("thrifty"))
	s.WaitReady(scene.Patience, "thrifty")
	s.SyncRecord()
	mark := s.Record.Mark()
	begin := time.Now()
	s.CreatePods(diskPod("hog", c.script))
	s.Wait(2*time.Minute, "the eviction of hog", isEvicted(s, "hog"))
	evicted := time.Since(begin)
	s.Wait(time.Minute, "the pressure", pressureIs(c.condition, corev1.ConditionTrue))
	s.Wait(2*time.Minute, "the end of the pressure", pressureIs(c.condition, corev1.ConditionFalse))
	t.Logf("evicted %s after its creation; no pressure after %s", evicted.Round(time.Second),
		time.Since(begin).Round(time.Second))
	time.Sleep(eventTime)
	return facts(s, mark)
}

// TestSignals has a hog exhaust each resource of the node but memory beside a pod that keeps to its request, with the
// kubelet and with microlet: the hog goes, and both show the same.
func TestSignals(t *testing.T) {
	scene.Shared.EnsureUp(t)
	scene.Shared.LinkForCadvisor(t)
	all := causes()
	args := signalArgs(t, all)
	shown := map[rig.Agent]map[string][]string{}
	t.Cleanup(func() { scene.Shared.SwitchTo(t, scene.FirstAgent) })
	for _, agent := range []rig.Agent{rig.AgentKubelet, rig.AgentMicrolet} {
		shown[agent] = map[string][]string{}
		scene.Shared.SwitchTo(t, agent, args...)
		for _, c := range all {
			t.Run(string(agent)+"/"+c.signal, func(t *testing.T) { shown[agent][c.signal] = evictHog(t, c) })
		}
	}
	for _, c := range all {
		compare(t, c.signal, map[rig.Agent][]string{
			rig.AgentKubelet: shown[rig.AgentKubelet][c.signal], rig.AgentMicrolet: shown[rig.AgentMicrolet][c.signal],
		})
	}
}

// compare judges that microlet has shown what the kubelet has shown. It may know how a container has ended that the
// kubelet has removed too early.
func compare(t *testing.T, what string, shown map[rig.Agent][]string) {
	t.Helper()
	theirs, ours := shown[rig.AgentKubelet], shown[rig.AgentMicrolet]
	t.Logf("%s:\n%s", what, strings.Join(theirs, "\n"))
	unknown := func(line string) bool {
		return strings.Contains(line, " container main ended ") && !slices.Contains(theirs, line)
	}
	if d := cmp.Diff(theirs, slices.DeleteFunc(ours, unknown)); d != "" {
		t.Errorf("%s: -kubelet +microlet\n%s", what, d)
	}
}
