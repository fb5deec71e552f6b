package resizing

import (
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func list(cpu, memory string) corev1.ResourceList {
	all := corev1.ResourceList{}
	if cpu != "" {
		all[corev1.ResourceCPU] = resource.MustParse(cpu)
	}
	if memory != "" {
		all[corev1.ResourceMemory] = resource.MustParse(memory)
	}
	return all
}

func pod(containers ...corev1.ResourceRequirements) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", UID: "1"}}
	for i, r := range containers {
		p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: fmt.Sprintf("c%d", i), Resources: r})
	}
	return p
}

func TestState(t *testing.T) {
	// The kubelet 1.37.1 wrote it.
	state, err := ParseState([]byte(`{"data":"{\"entries\":{\"1\":{\"ContainerResources\":{\"c0\":{\"limits\":` +
		`{\"cpu\":\"20m\"},\"requests\":{\"cpu\":\"10m\"}}},\"PodLevelResources\":null,\"EmptyDirVolumeLimits\":null}}}",` +
		`"checksum":1}`))
	if err != nil {
		t.Fatal(err)
	}
	p := pod(corev1.ResourceRequirements{Requests: list("0.01", ""), Limits: list("0.02", "")})
	if d := state["1"].Differences(p); len(d) > 0 {
		t.Errorf("the file differs from the same amounts: %q", d)
	}
	p.Spec.Containers[0].Resources.Limits = list("30m", "")
	p.Spec.Resources = &corev1.ResourceRequirements{Limits: list("1", "")}
	d := state["1"].Differences(p)
	if len(d) != 2 || !strings.HasPrefix(d[0], "the pod: nothing instead of ") ||
		!strings.HasPrefix(d[1], "c0: ") || !strings.Contains(d[1], `"cpu":"30m"`) {
		t.Errorf("differences %q", d)
	}
	for _, bad := range []string{"", "{", `{"data":"x"}`} {
		if _, err := ParseState([]byte(bad)); err == nil {
			t.Errorf("%q is a state file", bad)
		}
	}
}

func TestAmounts(t *testing.T) {
	both := corev1.ResourceRequirements{Requests: list("100m", "10Mi"), Limits: list("200m", "20Mi")}
	requests := corev1.ResourceRequirements{Requests: list("100m", "")}
	p := pod(both, both)
	want := map[string][2]Amounts{
		"the pod":     {{204, 40000, 40 << 20}, OfPod(p)},
		"a container": {{102, 20000, 20 << 20}, OfContainer(p, &p.Spec.Containers[0])},
	}
	p = pod(both, requests)
	want["a pod of which one container has no limit"] = [2]Amounts{{204, None, None}, OfPod(p)}
	want["a container without limits"] = [2]Amounts{{102, None, None}, OfContainer(p, &p.Spec.Containers[1])}
	p.Spec.Resources = &corev1.ResourceRequirements{Requests: list("1", ""), Limits: list("2", "1Gi")}
	want["a pod with resources of its own"] = [2]Amounts{{1024, 200000, 1 << 30}, OfPod(p)}
	want["its container without limits"] = [2]Amounts{{102, 200000, 1 << 30}, OfContainer(p, &p.Spec.Containers[1])}
	p.Spec.Containers[1].Resources = corev1.ResourceRequirements{}
	want["its container without anything"] = [2]Amounts{{0, 200000, 1 << 30}, OfContainer(p, &p.Spec.Containers[1])}
	p = pod(corev1.ResourceRequirements{Limits: list("1m", "5000")})
	want["the least"] = [2]Amounts{{2, 1000, 4096}, OfContainer(p, &p.Spec.Containers[0])}
	for what, a := range want {
		if a[0] != a[1] {
			t.Errorf("%s has %s, want %s", what, a[1], a[0])
		}
	}
	if p := (Amounts{5, 6, 7}).Problem(Amounts{0, 6, 7}); p != "" {
		t.Errorf("shares that are not known: %s", p)
	}
	if p := (Amounts{5, 6, 7}).Problem(Amounts{5, 6, None}); p == "" {
		t.Error("a lost limit is no problem")
	}
}

func TestFolders(t *testing.T) {
	files := map[string]string{
		"/r/cpu/a/pod1/c/cpu.shares": "102\n", "/r/cpu/a/pod1/c/cpu.cfs_quota_us": "20000\n",
		"/r/memory/b/pod1/c/memory.limit_in_bytes": "20971520\n",
		"/r/cpu/a/pod1/cpu.shares":                 "204\n", "/r/cpu/a/pod1/cpu.cfs_quota_us": "-1\n",
		"/r/memory/b/pod1/memory.limit_in_bytes": "9223372036854771712\n",
		"/r/u/pod1/c/cpu.max":                    "20000 100000\n", "/r/u/pod1/c/memory.max": "4096\n",
		"/r/u/pod1/cpu.max": "max 100000\n", "/r/u/pod1/memory.max": "max\n",
	}
	read := func(path string) ([]byte, error) {
		if text, ok := files[path]; ok {
			return []byte(text), nil
		}
		return nil, fs.ErrNotExist
	}
	cgroup := "5:memory:/b/pod1/c\n4:cpu,cpuacct:/a/pod1/c\n0::/u/pod1/c\n"
	for _, test := range []struct {
		unified        bool
		container, pod Amounts
	}{
		{false, Amounts{102, 20000, 20 << 20}, Amounts{204, None, None}},
		{true, Amounts{0, 20000, 4096}, Amounts{0, None, None}},
	} {
		f := FoldersOf("/r", cgroup, test.unified)
		if a, err := f.Read(read); err != nil || a != test.container {
			t.Errorf("the container's cgroup, unified %t: %s, %v, want %s", test.unified, a, err, test.container)
		}
		if a, err := f.Parent().Read(read); err != nil || a != test.pod {
			t.Errorf("the pod's cgroup, unified %t: %s, %v, want %s", test.unified, a, err, test.pod)
		}
		if a, err := f.Parent().Parent().Read(read); err == nil {
			t.Errorf("a cgroup without files has %s", a)
		}
	}
}

func TestStarted(t *testing.T) {
	ended := func(id string, at time.Time) corev1.ContainerState {
		return corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
			ContainerID: id, StartedAt: metav1.NewTime(at),
		}}
	}
	for _, test := range []struct {
		what string
		is   corev1.ContainerStatus
		want []string
	}{
		{"runs, after another", corev1.ContainerStatus{
			ContainerID: "b", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}},
			LastTerminationState: ended("a", time.Unix(5, 0)),
		}, []string{"b", "a"}},
		{"is created", corev1.ContainerStatus{
			ContainerID: "b", State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{}},
			LastTerminationState: ended("a", time.Unix(5, 0)),
		}, []string{"a"}},
		{"could not start", corev1.ContainerStatus{ContainerID: "b", State: ended("b", time.Unix(0, 0))}, nil},
		{"ended without times", corev1.ContainerStatus{ContainerID: "b", State: ended("b", time.Time{})}, nil},
	} {
		if got := Started(&test.is); !slices.Equal(got, test.want) {
			t.Errorf("of a container that %s, %q have started, want %q", test.what, got, test.want)
		}
	}
}

func TestStatus(t *testing.T) {
	has := corev1.ResourceRequirements{Requests: list("100m", "10Mi"), Limits: list("200m", "20Mi")}
	p := pod(has)
	p.Status.ContainerStatuses = []corev1.ContainerStatus{{
		Name: "c0", Resources: &has, AllocatedResources: has.Requests,
		State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}},
	}}
	if err := Done(p); err != nil {
		t.Errorf("a pod that has what it asks for: %v", err)
	}
	p.Status.ContainerStatuses[0].AllocatedResources = list("1", "")
	if err := Done(p); err == nil || !strings.Contains(err.Error(), "allocated") {
		t.Errorf("allocated resources that are not granted: %v", err)
	}
	p.Status.ContainerStatuses[0].State = corev1.ContainerState{}
	if err := Done(p); err == nil || !strings.Contains(err.Error(), "none of its containers runs") {
		t.Errorf("a container that does not run: %v", err)
	}
	p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodResizePending, Reason: "Deferred"}}
	if err := Done(p); err == nil || Pending(p) != "Deferred" {
		t.Errorf("a pending resize: %v, %q", err, Pending(p))
	}
	p.Status.Conditions[0].Type = corev1.PodResizeInProgress
	if problems := StatusProblems(p, p); !slices.ContainsFunc(problems, func(s string) bool {
		return strings.Contains(s, "in progress")
	}) {
		t.Errorf("a resize in progress: %q", problems)
	}
}
