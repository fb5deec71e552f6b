package cgroups

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	libcgroups "github.com/opencontainers/cgroups"
	v1 "k8s.io/api/core/v1"

	"github.com/microlet/microlet/services/internal/testing/cgrouptest"
)

func TestOnUnified(t *testing.T) {
	cgrouptest.OnUnified(t, func(t *testing.T) {
		before := read(t, unifiedMount+"/cgroup.subtree_control")
		root, _ := ownRoot(t)
		t.Cleanup(func() { restoreControllers(t, before) })
		goTheWholeWay(t, Options{Root: root, PerQOS: true, CPUCFSQuota: true}, root+"/kubepods/burstable/podaaaa-1")
	})
}

// restoreControllers takes back what the test turned on for the whole machine.
func restoreControllers(t *testing.T, before string) {
	t.Helper()
	for _, c := range strings.Fields(read(t, unifiedMount+"/cgroup.subtree_control")) {
		if !strings.Contains(" "+before+" ", " "+c+" ") {
			if err := os.WriteFile(unifiedMount+"/cgroup.subtree_control", []byte("-"+c), 0); err != nil {
				t.Logf("controller %s stays on: %v", c, err) // another program uses it by now
			}
		}
	}
}

// goTheWholeWay makes the roots, a pod, a process in it, and takes all away again.
func goTheWholeWay(t *testing.T, o Options, want string) {
	t.Helper()
	o.EnforceNodeAllocatable, o.Allocatable = []string{"pods"}, list("pid", "5000")
	m, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := m.EnsureRoots(); err != nil {
			t.Fatal(err)
		}
	}
	all, err := m.path(m.root)
	if err != nil {
		t.Fatal(err)
	}
	if slices.Contains(m.needed, "pids") {
		if got := read(t, unifiedMount+all+"/pids.max"); got != "5000" {
			t.Errorf("pids.max of all pods = %s, want 5000", got)
		}
	}
	p := testPod("aaaa-1", v1.ResourceRequirements{
		Requests: list("cpu", "100m", "hugepages-2Mi", "4Mi"),
		Limits:   list("cpu", "200m", "memory", "64Mi", "hugepages-2Mi", "4Mi"),
	})
	parent, err := m.EnsurePod(p)
	if err != nil || parent != want {
		t.Fatalf("parent %q, %v, want %q", parent, err, want)
	}
	if err := m.UpdateQOS([]*v1.Pod{p}); err != nil {
		t.Fatal(err)
	}
	for _, c := range m.needed {
		limit, ok := map[string][2]string{
			"hugetlb": {"hugetlb.2MB.max", "4194304"},
			"memory":  {"memory.max", "67108864"},
			"cpu":     {"cpu.max", "20000 100000"},
		}[c]
		if !ok {
			continue
		}
		if got := read(t, filepath.Join(unifiedMount, parent, limit[0])); got != limit[1] {
			t.Errorf("%s = %s, want %s", limit[0], got, limit[1])
		}
	}
	if found, err := m.Pods(); err != nil || len(found) != 1 || found["aaaa-1"] != parent {
		t.Errorf("Pods = %v, %v", found, err)
	}
	resizeWhole(t, m, p)
	left, ended := sleeping(t)
	if err := libcgroups.WriteCgroupProc(filepath.Join(unifiedMount, parent), left); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	for range 2 {
		if err := m.RemovePod(ctx, p.UID); err != nil {
			t.Fatal(err)
		}
	}
	if err := <-ended; err == nil || err.Error() != "signal: killed" {
		t.Errorf("the process that was left ended with %v", err)
	}
	if m.anywhere(parent) {
		t.Errorf("%s is still there", parent)
	}
}

// resizeWhole changes all limits of a pod's cgroup that this host has, and takes them away.
func resizeWhole(t *testing.T, m *Manager, p *v1.Pod) {
	t.Helper()
	for _, r := range []v1.ResourceRequirements{
		{Requests: list("cpu", "300m"), Limits: list("cpu", "1200m", "memory", "128Mi")}, {Requests: list("cpu", "300m")},
	} {
		resized := p.DeepCopy()
		resized.Spec.Containers[0].Resources = r
		c, err := m.ReadPod(resized, nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := m.SetPod(resized, c.Has, c.Wants); err != nil {
			t.Error(err)
		}
		if c, err = m.ReadPod(resized, nil); err != nil || c.Has != c.Wants {
			t.Errorf("the cgroup has %+v, wants %+v, %v", c.Has, c.Wants, err)
		}
	}
}

// TestUnifiedValues holds the numbers that cgroup v2 gets, which a machine without the
// controllers cannot show.
func TestUnifiedValues(t *testing.T) {
	factor := 0.9
	m := &Manager{
		unified: true, needed: []string{"cpu", "memory", "pids", "cpuset"},
		o: Options{
			CPUCFSQuota:            true,
			CPUCFSQuotaPeriod:      100 * time.Millisecond,
			PodPidsLimit:           77,
			MemoryThrottlingFactor: &factor,
		},
	}
	limited := testPod("u",
		v1.ResourceRequirements{
			Requests: list("cpu", "1", "memory", "64Mi"),
			Limits:   list("cpu", "2", "memory", "128Mi"),
		})
	podLevel := testPod("u", v1.ResourceRequirements{})
	podLevel.Spec.Resources = &v1.ResourceRequirements{
		Requests: list("cpu", "500m", "memory", "100Mi"),
		Limits:   list("cpu", "1", "memory", "200Mi"),
	}
	for _, test := range []struct {
		name string
		pod  *v1.Pod
		want string
	}{
		{"limits", limited, "weight 39, quota 200000 of 100000, memory 134217728, pids 77, map[]"},
		{"none", testPod("u", v1.ResourceRequirements{}), "weight 1, quota 0 of 0, memory 0, pids 77, map[]"},
		{"pod level", podLevel, "weight 20, quota 100000 of 100000, memory 209715200, pids 77, map[memory.high:199229440]"},
	} {
		r := m.convert(m.podResources(test.pod))
		got := fmt.Sprintf("weight %d, quota %d of %d, memory %d, pids %d, %v", r.CpuWeight, r.CpuQuota, r.CpuPeriod,
			r.Memory, *r.PidsLimit, r.Unified)
		if d := cmp.Diff(test.want, got); d != "" {
			t.Errorf("%s: -want +got\n%s", test.name, d)
		}
		if r.CpuShares != 0 || !r.SkipDevices || !r.SkipFreezeOnSet {
			t.Errorf("%s: %+v", test.name, r)
		}
	}
}

// The root of the pods gets CPUs, with either driver, and a pod does not.
func TestRootHasCPUs(t *testing.T) {
	for _, systemd := range []bool{false, true} {
		m := &Manager{unified: true, systemd: systemd, needed: []string{"cpu", "cpuset"}}
		if m.convert(m.nodeResources()).CpusetCpus == "" {
			t.Errorf("systemd %v: the root of the pods has no CPUs", systemd)
		}
		if cpus := m.convert(m.podResources(testPod("u"))).CpusetCpus; cpus != "" {
			t.Errorf("systemd %v: a pod has the CPUs %q", systemd, cpus)
		}
	}
}

func TestPodLevelResources(t *testing.T) {
	m := &Manager{o: Options{CPUCFSQuota: true, CPUCFSQuotaPeriod: 100 * time.Millisecond}}
	p := testPod("u", v1.ResourceRequirements{Requests: list("cpu", "100m")}, v1.ResourceRequirements{})
	p.Spec.Resources = &v1.ResourceRequirements{
		Requests: list("cpu", "500m", "memory", "64Mi", "hugepages-2Mi", "2Mi"),
		Limits:   list("cpu", "1", "memory", "64Mi", "hugepages-2Mi", "2Mi"),
	}
	r := m.podResources(p)
	if *r.shares != 512 || *r.quota != 100000 || *r.memory != 64<<20 || r.hugePages["2MB"] != 2<<20 ||
		r.unified != nil {
		t.Errorf("shares %d, quota %d, memory %d, %v, %v", *r.shares, *r.quota, *r.memory, r.hugePages, r.unified)
	}
	if memoryHigh(64<<20, 64<<20, 0.9) != nil || memoryHigh(0, 0, 0.9) != nil {
		t.Error("a pod that may not exceed its request needs no throttle")
	}
}
