//go:build machine

package machine

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/microlet/microlet/compose/e2e/scene"
	"github.com/microlet/microlet/compose/rig"
)

// settled is how long a tree of cgroups is left alone before it is read: the kubelet updates its QoS classes each
// minute.
const settled = 65 * time.Second

// TestCgroupTwins runs the same pods under the kubelet and under microlet, each from an empty tree, and compares every
// file that says what a cgroup may have: of all pods, the QoS classes, pods and containers.
func TestCgroupTwins(t *testing.T) {
	s := scene.New(t)
	theirs := limits(s, rig.AgentKubelet)
	ours := limits(s, rig.AgentMicrolet)
	t.Logf("%d files under the kubelet, %d under microlet", len(theirs), len(ours))
	// The positive control: limits of all kinds were read, of each level.
	for file, want := range map[string]string{
		"kubepods/guaranteed/main/memory.max": "33554432", "kubepods/guaranteed/main/cpu.max": "20000 100000",
		"kubepods/burstable/burstable/memory.max": "max", "kubepods/besteffort/cpu.weight": "1",
	} {
		if theirs[file] != want {
			t.Errorf("under the kubelet %s is %q, want %q", file, theirs[file], want)
		}
	}
	names := maps.Clone(theirs)
	maps.Copy(names, ours)
	for _, name := range slices.Sorted(maps.Keys(names)) {
		a, isA := theirs[name]
		b, isB := ours[name]
		if a != b || isA != isB {
			t.Errorf("%s: kubelet %q (%t), microlet %q (%t)", name, a, isA, b, isB)
		}
	}
}

// cgroupPods are pods of each class, and of each way to get into it.
func cgroupPods() []*corev1.Pod {
	with := func(name string, requests, limits corev1.ResourceList) *corev1.Pod {
		p := scene.ScriptPod(name, scene.Forever)
		p.Spec.Containers[0].Resources = corev1.ResourceRequirements{Requests: requests, Limits: limits}
		return p
	}
	list := func(cpu, memory string) corev1.ResourceList {
		l := corev1.ResourceList{}
		if cpu != "" {
			l[corev1.ResourceCPU] = resource.MustParse(cpu)
		}
		if memory != "" {
			l[corev1.ResourceMemory] = resource.MustParse(memory)
		}
		return l
	}
	two := with("two", list("50m", "16Mi"), list("100m", "32Mi"))
	second := *two.Spec.Containers[0].DeepCopy()
	second.Name, second.Resources = "second", corev1.ResourceRequirements{Requests: list("30m", "")}
	two.Spec.Containers = append(two.Spec.Containers, second)
	return []*corev1.Pod{
		with("besteffort", nil, nil),
		with("burstable", list("100m", "16Mi"), nil),
		with("bounded", list("100m", "16Mi"), list("200m", "32Mi")),
		with("memory", nil, list("", "24Mi")),
		with("guaranteed", nil, list("200m", "32Mi")),
		two,
	}
}

// limits runs the pods under an agent, which finds no cgroup of pods, and returns what each file of theirs holds. Pods
// and containers are named in the paths as the API names them.
func limits(s *scene.Scene, agent rig.Agent) map[string]string {
	s.T.Helper()
	if err := s.StopAgent(s.T.Context()); err != nil {
		s.T.Fatal(err)
	}
	const clear = `cd /sys/fs/cgroup; systemctl stop kubepods.slice; test ! -e kubepods || find kubepods -depth -type d -exec rmdir {} +
! test -e kubepods.slice && ! test -e kubepods`
	if _, err := s.RunOnMachine(s.T.Context(), "sh", "-c", clear); err != nil {
		s.T.Fatal(err)
	}
	scene.Current.Agent = rig.AgentNone
	s.SwitchTo(s.T, agent)
	var names []string
	pods := cgroupPods()
	for _, p := range pods {
		names = append(names, p.Name)
	}
	s.CreatePods(pods...)
	s.WaitReady(scene.Patience, names...)
	time.Sleep(settled)

	// What the driver systemd calls
	// kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod<uid>.slice/cri-containerd-<id>.scope is
	// kubepods/burstable/pod<uid>/<id> with cgroupfs.
	words := []string{"kubepods.slice", "kubepods", "kubepods-burstable.slice", "burstable",
		"kubepods-besteffort.slice", "besteffort"}
	err := s.CRI(func(c runtimeapi.RuntimeServiceClient) error {
		sandboxes, err := c.ListPodSandbox(s.T.Context(), &runtimeapi.ListPodSandboxRequest{})
		for _, b := range sandboxes.GetItems() {
			words = append(words, "cri-containerd-"+b.GetId()+".scope", "sandbox", b.GetId(), "sandbox")
		}
		return err
	})
	if err != nil {
		s.T.Fatal(err)
	}
	v := s.Record.View()
	for _, name := range names {
		p := v.Pod(s.Namespace, name)
		for _, c := range p.Status.ContainerStatuses {
			id := strings.TrimPrefix(c.ContainerID, "containerd://")
			words = append(words, "cri-containerd-"+id+".scope", c.Name, id, c.Name)
		}
		words = append(words, "pod"+string(p.UID), name)
		uid := strings.ReplaceAll(string(p.UID), "-", "_")
		for _, class := range []string{"kubepods-burstable-pod", "kubepods-besteffort-pod", "kubepods-pod"} {
			words = append(words, class+uid+".slice", name)
		}
	}
	const script = `cd /sys/fs/cgroup && find kubepods* -type f \( -name 'cpu.max*' -o -name 'cpu.weight*' -o -name cpu.idle -o -name 'cpuset.cpus' \
-o -name cpuset.mems -o -name cpuset.cpus.partition -o -name 'memory.m[ai][xn]' -o -name memory.low -o -name memory.high -o -name memory.oom.group \
-o -name 'memory.swap.*[xh]' -o -name 'memory.zswap.max' -o -name pids.max -o -name 'hugetlb.*.max' -o -name io.max -o -name 'io.weight' \
-o -name cgroup.subtree_control -o -name cgroup.type -o -name 'cgroup.max.*' -o -name cgroup.freeze \) | while read -r f; do echo "$f=$(tr '\n' ' ' <"$f")"; done`
	lines, err := s.LinesOnMachine("sh", "-c", script)
	if err != nil {
		s.T.Fatal(err)
	}
	files := map[string]string{}
	replace := strings.NewReplacer(words...)
	for _, line := range lines {
		path, value, _ := strings.Cut(line, "=")
		files[replace.Replace(path)] = strings.TrimSpace(value)
	}
	s.DeletePods(names...)
	s.Wait(scene.Patience, "the end of the pods", s.AreGone(names...))
	return files
}
