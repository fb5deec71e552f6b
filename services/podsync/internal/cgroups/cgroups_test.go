package cgroups

import (
	"context"
	"errors"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/microlet/microlet/services/internal/podcgroup"
)

func list(pairs ...string) v1.ResourceList {
	l := v1.ResourceList{}
	for i := 0; i < len(pairs); i += 2 {
		l[v1.ResourceName(pairs[i])] = resource.MustParse(pairs[i+1])
	}
	return l
}

func testPod(uid string, containers ...v1.ResourceRequirements) *v1.Pod {
	p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "n", UID: types.UID(uid)}}
	for i, r := range containers {
		p.Spec.Containers = append(p.Spec.Containers, v1.Container{Name: "c" + strconv.Itoa(i), Resources: r})
	}
	return p
}

func TestSharesAndQuota(t *testing.T) {
	for milli, want := range map[int64]uint64{0: 2, 1: 2, 2: 2, 100: 102, 1000: 1024, 1 << 30: 262144,
		math.MaxInt64: 262144} {
		if got := MilliCPUToShares(milli); got != want {
			t.Errorf("MilliCPUToShares(%d) = %d, want %d", milli, got, want)
		}
	}
	for _, c := range []struct{ milli, period, want int64 }{{0, 100000, 0}, {1, 100000, 1000}, {200, 100000, 20000},
		{1500, 10000, 15000}} {
		if got := MilliCPUToQuota(c.milli, c.period); got != c.want {
			t.Errorf("MilliCPUToQuota(%d, %d) = %d, want %d", c.milli, c.period, got, c.want)
		}
	}
	for shares, want := range map[uint64]uint64{2: 1, 1024: 39, 262144: 10000, 1 << 40: 10000} {
		if got := sharesToWeight(shares); got != want {
			t.Errorf("sharesToWeight(%d) = %d, want %d", shares, got, want)
		}
	}
}

func TestHugePages(t *testing.T) {
	got := HugePages(list("hugepages-2Mi", "64Mi", "hugepages-1Gi", "2Gi", "cpu", "1", "hugepages-x1", "1"))
	if len(got) != 2 || got["2MB"] != 64<<20 || got["1GB"] != 2<<30 {
		t.Errorf("HugePages = %v", got)
	}
}

func TestPodResources(t *testing.T) {
	m := &Manager{o: Options{CPUCFSQuota: true, CPUCFSQuotaPeriod: 100 * time.Millisecond, PodPidsLimit: 50}}
	limited := v1.ResourceRequirements{Requests: list("cpu", "100m"), Limits: list("cpu", "200m", "memory", "64Mi")}
	open := v1.ResourceRequirements{Requests: list("cpu", "100m")}

	r := m.podResources(testPod("u", limited, limited))
	if *r.shares != 204 || *r.quota != 40000 || *r.memory != 128<<20 || *r.pids != 50 {
		t.Errorf("limited: %d %d %d", *r.shares, *r.quota, *r.memory)
	}
	r = m.podResources(testPod("u", limited, open))
	if *r.shares != 204 || r.quota != nil || r.memory != nil {
		t.Errorf("one container without limits must leave the pod without: %+v", r)
	}
	r = m.podResources(testPod("u", v1.ResourceRequirements{}))
	if *r.shares != 2 || r.quota != nil || r.memory != nil {
		t.Errorf("best effort: %+v", r)
	}
	overhead := testPod("u", limited)
	overhead.Spec.Overhead = list("cpu", "50m", "memory", "32Mi")
	r = m.podResources(overhead)
	if *r.shares != 153 || *r.quota != 25000 || *r.memory != 96<<20 {
		t.Errorf("overhead: %d %d %d", *r.shares, *r.quota, *r.memory)
	}
	m.o.CPUCFSQuota = false
	if r = m.podResources(testPod("u", limited)); *r.quota != -1 {
		t.Errorf("quota without cpuCFSQuota: %d", *r.quota)
	}
}

func TestNodeResources(t *testing.T) {
	o := Options{
		Capacity:    list("cpu", "4", "memory", "8Gi"),
		Allocatable: list("cpu", "3", "memory", "7Gi", "pid", "1000"),
	}
	m := &Manager{o: o}
	if r := m.nodeResources(); *r.shares != 4096 || *r.memory != 8<<30 || r.pids != nil {
		t.Errorf("capacity: %+v", r)
	}
	m.o.EnforceNodeAllocatable = []string{"pods"}
	if r := m.nodeResources(); *r.shares != 3072 || *r.memory != 7<<30 || *r.pids != 1000 {
		t.Errorf("allocatable: %+v", r)
	}
}

func TestNewRefuses(t *testing.T) {
	if _, err := New(Options{Driver: "docker"}); err == nil || !strings.Contains(err.Error(), "cgroupDriver") {
		t.Errorf("err = %v", err)
	}
	if err := CheckVersion(true); (err == nil) != Unified() {
		t.Errorf("CheckVersion(true) = %v on unified %v", err, Unified())
	}
	if err := CheckVersion(false); err != nil {
		t.Error(err)
	}
}

// ownRoot makes a cgroup of this test alone in every hierarchy.
func ownRoot(t *testing.T) (root string, mounts map[string]string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatal("needs root: it makes cgroups")
	}
	probe, err := New(Options{})
	if err != nil {
		t.Fatal(err)
	}
	root = "/microlet-test-" + strconv.Itoa(os.Getpid()) + "-" + strings.ToLower(t.Name())
	n := podcgroup.ParseRoot(root, false)
	if err := probe.create(n, resources{}); err != nil {
		if os.IsPermission(err) || strings.Contains(err.Error(), "read-only") {
			t.Fatalf("this machine does not let cgroups be made: %v", err)
		}
		t.Fatal(err)
	}
	t.Cleanup(func() {
		deepest := probe.pids(root)
		for _, pid := range deepest {
			t.Errorf("process %d left in %s", pid, root)
		}
		made, err := probe.manager(n, probe.convert(resources{}))
		if err == nil {
			err = made.Destroy()
		}
		if err != nil {
			t.Error(err)
		}
		if probe.anywhere(root) {
			t.Errorf("%s is still there", root)
		}
	})
	return root, probe.mounts
}

func read(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(text))
}

// TestOnThisMachine goes the whole way on the machine's own hierarchy: roots, a pod, what is
// left in it, and nothing afterwards.
func TestOnThisMachine(t *testing.T) {
	root, mounts := ownRoot(t)
	o := Options{Root: root, PerQOS: true, CPUCFSQuota: true, PodPidsLimit: 77,
		EnforceNodeAllocatable: []string{"pods"}, Allocatable: list("cpu", "1", "memory", "4Gi", "pid", "5000")}
	m, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 { // the second time nothing may fail or change
		if err := m.EnsureRoots(); err != nil {
			t.Fatal(err)
		}
	}
	limited := v1.ResourceRequirements{Requests: list("cpu", "100m"), Limits: list("cpu", "200m", "memory", "64Mi")}
	p := testPod("aaaa-1", limited)
	parent, err := m.EnsurePod(p)
	if err != nil {
		t.Fatal(err)
	}
	if want := root + "/kubepods/burstable/podaaaa-1"; parent != want || m.PodParent(p) != want {
		t.Errorf("parent = %q, %q, want %q", parent, m.PodParent(p), want)
	}
	if err := m.UpdateQOS([]*v1.Pod{p}); err != nil {
		t.Fatal(err)
	}
	if !Unified() {
		for file, want := range map[string]string{
			mounts["cpu"] + root + "/kubepods/cpu.shares":               "1024",
			mounts["memory"] + root + "/kubepods/memory.limit_in_bytes": "4294967296",
			mounts["cpu"] + root + "/kubepods/burstable/cpu.shares":     "102",
			mounts["cpu"] + root + "/kubepods/besteffort/cpu.shares":    "2",
			mounts["cpu"] + parent + "/cpu.shares":                      "102",
			mounts["cpu"] + parent + "/cpu.cfs_quota_us":                "20000",
			mounts["memory"] + parent + "/memory.limit_in_bytes":        "67108864",
			mounts["pids"] + parent + "/pids.max":                       "77",
			mounts["pids"] + root + "/kubepods/pids.max":                "5000",
			mounts["memory"] + filepath.Dir(parent) + "/memory.swappiness": read(t,
				mounts["memory"]+"/memory.swappiness"),
		} {
			if got := read(t, file); got != want {
				t.Errorf("%s = %s, want %s", file, got, want)
			}
		}
	} else {
		for file, want := range map[string]string{
			unifiedMount + parent + "/memory.max":      "67108864",
			unifiedMount + parent + "/cpu.max":         "20000 100000",
			unifiedMount + parent + "/pids.max":        "77",
			unifiedMount + root + "/kubepods/pids.max": "5000",
		} {
			if got := read(t, file); got != want {
				t.Errorf("%s = %s, want %s", file, got, want)
			}
		}
	}
	// A pod that is there keeps its limits.
	changed := p.DeepCopy()
	changed.Spec.Containers[0].Resources.Limits[v1.ResourceMemory] = resource.MustParse("128Mi")
	if _, err := m.EnsurePod(changed); err != nil {
		t.Fatal(err)
	}

	found, err := m.Pods()
	if err != nil || len(found) != 1 || found["aaaa-1"] != parent {
		t.Errorf("Pods = %v, %v", found, err)
	}

	// A process that is left below the pod is killed, and its cgroup goes.
	left, ended := sleeping(t)
	sub := podcgroup.ParseRoot(parent+"/container", false)
	if err := m.create(sub, resources{}); err != nil {
		t.Fatal(err)
	}
	made, err := m.manager(sub, m.convert(resources{}))
	if err != nil {
		t.Fatal(err)
	}
	if err := made.Apply(left); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	if err := m.RemovePod(ctx, p.UID); err != nil {
		t.Fatal(err)
	}
	err = <-ended
	var exit *exec.ExitError
	ok := errors.As(err, &exit)
	if !ok || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		t.Errorf("the process that was left ended with %v, want a kill", err)
	}
	if err := m.RemovePod(ctx, p.UID); err != nil {
		t.Errorf("removing it again: %v", err)
	}
	if found, err := m.Pods(); err != nil || len(found) != 0 {
		t.Errorf("Pods after removal = %v, %v", found, err)
	}
	if m.anywhere(parent) {
		t.Errorf("%s is still there", parent)
	}
}

// sleeping starts a process that only a kill ends, and returns how it ended.
func sleeping(t *testing.T) (pid int, ended <-chan error) {
	t.Helper()
	p := exec.Command("sleep", "1000")
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- p.Wait() }()
	return p.Process.Pid, done
}

func TestUIDIsNoPath(t *testing.T) {
	root, _ := ownRoot(t)
	m, err := New(Options{Root: root, PerQOS: true})
	if err != nil {
		t.Fatal(err)
	}
	if err := m.EnsureRoots(); err != nil {
		t.Fatal(err)
	}
	for _, uid := range []types.UID{"", "/../../other", "a/../../..", "a_b"} {
		if err := m.RemovePod(t.Context(), uid); err == nil {
			t.Errorf("RemovePod(%q) went ahead", uid)
		}
		if _, err := m.EnsurePod(testPod(string(uid))); err == nil {
			t.Errorf("EnsurePod(%q) went ahead", uid)
		}
	}
	if ok, err := m.exists(m.root); !ok || err != nil {
		t.Errorf("the root of all pods is gone: %v", err)
	}
}

func TestRootMissing(t *testing.T) {
	m, err := New(Options{Root: "/microlet-test-not-there", PerQOS: true})
	if err != nil {
		t.Fatal(err)
	}
	if err := m.EnsureRoots(); err == nil || !strings.Contains(err.Error(), "cgroupRoot") {
		t.Errorf("err = %v", err)
	}
}

func TestWithoutQOS(t *testing.T) {
	m, err := New(Options{PodPidsLimit: 5})
	if err != nil {
		t.Fatal(err)
	}
	p := testPod("u")
	if parent, err := m.EnsurePod(p); parent != "" || err != nil || m.PodParent(p) != "" {
		t.Errorf("parent = %q, %v", parent, err)
	}
	if found, err := m.Pods(); len(found) != 0 || err != nil {
		t.Errorf("Pods = %v, %v", found, err)
	}
}
