package criconfig

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	v1 "k8s.io/api/core/v1"

	"github.com/microlet/microlet/services/podsync/internal/pod"
)

func sized(requests, limits v1.ResourceList) *v1.Pod {
	return &v1.Pod{Spec: v1.PodSpec{Containers: []v1.Container{{
		Name: "c", Resources: v1.ResourceRequirements{Requests: requests, Limits: limits},
	}}}}
}

// TestContainerUpdate takes away what a container is not to have any more.
func TestContainerUpdate(t *testing.T) {
	limited := sized(list("cpu", "100m", "memory", "64Mi"), list("cpu", "200m", "memory", "128Mi", "hugepages-2Mi", "2Mi"))
	free := sized(list("cpu", "100m"), nil)
	wholly := sized(list("cpu", "100m"), nil)
	wholly.Spec.Resources = &v1.ResourceRequirements{Limits: list("cpu", "1", "memory", "1Gi")}
	max := map[string]string{"memory.high": "max"}
	noSwap := map[string]string{"memory.high": "max", "memory.swap.max": "0"}
	type node struct{ unified, swap, quota bool }
	for name, test := range map[string]struct {
		node
		pod  *v1.Pod
		want *runtimeapi.LinuxContainerResources
	}{
		"limits": {node{quota: true}, limited, &runtimeapi.LinuxContainerResources{
			CpuShares: 102, CpuQuota: 20000, CpuPeriod: 100000, MemoryLimitInBytes: 128 << 20, OomScoreAdj: 993,
		}},
		"limits with swap": {node{swap: true, quota: true}, limited, &runtimeapi.LinuxContainerResources{
			CpuShares: 102, CpuQuota: 20000, CpuPeriod: 100000, MemoryLimitInBytes: 128 << 20,
			MemorySwapLimitInBytes: 128 << 20, OomScoreAdj: 993,
		}},
		"none": {node{quota: true}, free, &runtimeapi.LinuxContainerResources{
			CpuShares: 102, CpuQuota: -1, CpuPeriod: 100000, MemoryLimitInBytes: -1, OomScoreAdj: 999,
		}},
		"none with swap": {node{swap: true, quota: true}, free, &runtimeapi.LinuxContainerResources{
			CpuShares: 102, CpuQuota: -1, CpuPeriod: 100000, MemoryLimitInBytes: -1, MemorySwapLimitInBytes: -1,
			OomScoreAdj: 999,
		}},
		"without cpuCFSQuota": {node{}, free, &runtimeapi.LinuxContainerResources{
			CpuShares: 102, MemoryLimitInBytes: -1, OomScoreAdj: 999,
		}},
		"none with cgroup v2": {node{unified: true, quota: true}, free, &runtimeapi.LinuxContainerResources{
			CpuShares: 102, CpuQuota: -1, CpuPeriod: 100000, MemoryLimitInBytes: -1, OomScoreAdj: 999, Unified: max,
		}},
		"none with cgroup v2 and swap": {
			node{unified: true, swap: true, quota: true}, free, &runtimeapi.LinuxContainerResources{
				CpuShares: 102, CpuQuota: -1, CpuPeriod: 100000, MemoryLimitInBytes: -1, OomScoreAdj: 999, Unified: noSwap,
			},
		},
		"those of the pod": {node{quota: true}, wholly, &runtimeapi.LinuxContainerResources{
			CpuShares: 102, CpuQuota: 100000, CpuPeriod: 100000, MemoryLimitInBytes: 1 << 30, OomScoreAdj: 999,
		}},
	} {
		b := &Builder{Node: Node{
			Unified: test.unified, SwapController: test.swap, CPUCFSQuota: test.quota, MemoryCapacity: 8 << 30,
			HugePageSizes: []string{"2MB"}, SingleProcessOOMKill: new(true),
		}}
		if diff := cmp.Diff(test.want, b.ContainerUpdate(test.pod, &test.pod.Spec.Containers[0]),
			protocmp.Transform()); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
		// What is created and what is changed differ in what is taken away.
		created := b.ContainerResources(test.pod, &test.pod.Spec.Containers[0])
		if created.MemoryLimitInBytes != maximum(test.want.MemoryLimitInBytes) ||
			created.CpuQuota != maximum(test.want.CpuQuota) || len(created.HugepageLimits) != 1 {
			t.Errorf("%s: created with %v", name, created)
		}
	}
}

func maximum(n int64) int64 { return max(n, 0) }

// TestMemoryHighIsTakenAway when the request has reached the limit.
func TestMemoryHighIsTakenAway(t *testing.T) {
	factor := 0.9
	b := &Builder{Node: Node{Unified: true, MemoryQoS: true, MemoryThrottlingFactor: &factor, MemoryReservation: true}}
	for limit, want := range map[string]string{"64Mi": "max", "128Mi": "127504384"} {
		p := sized(list("memory", "64Mi"), list("memory", limit))
		if got := b.ContainerUpdate(p, &p.Spec.Containers[0]).Unified["memory.high"]; got != want {
			t.Errorf("limit %s: memory.high %s, want %s", limit, got, want)
		}
	}
}

func TestSandboxUpdate(t *testing.T) {
	p := sized(list("cpu", "1"), nil)
	b := &Builder{Node: Node{CPUCFSQuota: true}}
	limits := pod.CgroupLimits{
		MemoryLimit: pod.Unlimited, MemoryHigh: pod.Unlimited, CPUQuota: pod.Unlimited, CPUPeriod: 100000, CPUShares: 1024,
	}
	check := func(name string, want *runtimeapi.LinuxContainerResources) {
		t.Helper()
		got, _ := b.SandboxUpdate(p, limits)
		if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
	check("no limits", &runtimeapi.LinuxContainerResources{
		CpuPeriod: 100000, CpuQuota: -1, CpuShares: 1024, MemoryLimitInBytes: -1,
	})
	limits = pod.CgroupLimits{
		MemoryLimit: 1 << 30, MemoryHigh: 1 << 29, MemoryProtected: 1 << 20, CPUQuota: 250000, CPUPeriod: 100000,
		CPUShares: 2048,
	}
	check("limits", &runtimeapi.LinuxContainerResources{
		CpuPeriod: 100000, CpuQuota: 250000, CpuShares: 2048, MemoryLimitInBytes: 1 << 30,
		Unified: map[string]string{"memory.high": "536870912", "memory.low": "1048576"},
	})
	p.Spec.Overhead = list("cpu", "500m", "memory", "512Mi")
	check("overhead", &runtimeapi.LinuxContainerResources{
		CpuPeriod: 100000, CpuQuota: 200000, CpuShares: 1536, MemoryLimitInBytes: 1 << 29,
		Unified: map[string]string{"memory.high": "536870912", "memory.low": "1048576"},
	})
	if _, overhead := b.SandboxUpdate(p, limits); overhead.CpuQuota != 50000 || overhead.MemoryLimitInBytes != 1<<29 {
		t.Errorf("the overhead is %v", overhead)
	}
}
