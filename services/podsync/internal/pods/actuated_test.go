package pods

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// TestActuated holds what a container has against what is recorded of it and what the runtime shows.
func TestActuated(t *testing.T) {
	old, granted := sizes("100m", "200m", "1000", "4Ki"), sizes("300m", "400m", "2000", "8Ki")
	linux := func(shares, quota, memory int64) *runtimeapi.LinuxContainerResources {
		return &runtimeapi.LinuxContainerResources{
			CpuShares: shares, CpuQuota: quota, CpuPeriod: 100000, MemoryLimitInBytes: memory,
		}
	}
	wants := linux(307, 40000, 8192)
	memoryAlone := sizes("300m", "400m", "1000", "8Ki")
	for name, test := range map[string]struct {
		recorded *v1.ResourceRequirements
		shown    *runtimeapi.LinuxContainerResources
		restarts v1.ResourceName
		want     v1.ResourceRequirements
	}{
		"recorded and shown":         {recorded: &old, shown: linux(102, 20000, 4096), want: old},
		"recorded, nothing is shown": {recorded: &old, want: old},
		"recorded, something else":   {recorded: &old, shown: linux(7, 9, 1<<20), want: old},
		"given and not recorded":     {recorded: &old, shown: wants, want: granted},
		"CPU given and not recorded": {
			recorded: &old, shown: linux(307, 40000, 4096), want: sizes("300m", "400m", "1000", "4Ki"),
		},
		"memory given and not recorded": {
			recorded: &old, shown: linux(102, 20000, 8192), want: sizes("100m", "200m", "2000", "8Ki"),
		},
		"another period": {
			recorded: &old, want: granted, shown: &runtimeapi.LinuxContainerResources{
				CpuShares: 307, CpuQuota: 4000, CpuPeriod: 10000, MemoryLimitInBytes: 8195,
			},
		},
		"a request that nothing shows":   {recorded: &memoryAlone, shown: wants, want: memoryAlone},
		"not recorded, as granted":       {shown: wants, want: granted},
		"not recorded, less":             {shown: linux(102, 20000, 4096), want: sizes("100m", "200m", "2000", "4Ki")},
		"not recorded, no limits":        {shown: linux(2, -1, -1), want: sizes("", "", "2000", "")},
		"not recorded, nothing is shown": {want: sizes("", "", "", "")},
		"not recorded, restarts for it": {
			shown: linux(102, 20000, 4096), restarts: v1.ResourceMemory, want: sizes("100m", "200m", "2000", "8Ki"),
		},
		"not recorded, shown or restarts": {restarts: v1.ResourceCPU, want: sizes("300m", "400m", "", "")},
	} {
		p := resizedPod(testPod("a"), granted)
		c := &p.Spec.Containers[0]
		if test.restarts != "" {
			restarting(p, 0, test.restarts)
		}
		w := &worker{deps: &Deps{Resources: Resources{Config: &node{}}}}
		var recorded v1.ResourceRequirements
		if test.recorded != nil {
			recorded = *test.recorded
		}
		got := w.actuated(p, c, recorded, test.recorded != nil, test.shown)
		if diff := cmp.Diff(test.want, got, cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
		if diff := cmp.Diff(granted, c.Resources); diff != "" {
			t.Errorf("%s has changed the pod: %s", name, diff)
		}
	}
}

// TestActuatedUnderANewLimitOfThePod: the pod as a whole gets limits, and the container has them although only what it
// had before is recorded. It does not start for them a second time.
func TestActuatedUnderANewLimitOfThePod(t *testing.T) {
	p := restarting(resizedPod(testPod("a"), sizes("100m", "", "", "")), 0, v1.ResourceMemory)
	p.Spec.Resources = new(sizes("", "400m", "", "8Ki"))
	w := &worker{deps: &Deps{Resources: Resources{Config: &node{}}}}
	shown := w.deps.Config.ContainerResources(p, &p.Spec.Containers[0])
	got := w.actuated(p, &p.Spec.Containers[0], sizes("100m", "", "", ""), true, shown)
	if diff := cmp.Diff(sizes("100m", "400m", "", "8Ki"), got, cmpopts.EquateEmpty()); diff != "" {
		t.Error(diff)
	}
}

// TestActuatedUnlimited compares what the runtime shows of a container without limits.
func TestActuatedUnlimited(t *testing.T) {
	p := resizedPod(testPod("a"), sizes("100m", "", "", ""))
	w := &worker{deps: &Deps{Resources: Resources{Config: &node{}}}}
	recorded := sizes("100m", "200m", "", "4Ki")
	for _, shown := range []*runtimeapi.LinuxContainerResources{
		{CpuShares: 102}, {CpuShares: 102, CpuQuota: -1, CpuPeriod: 100000, MemoryLimitInBytes: -1},
	} {
		got := w.actuated(p, &p.Spec.Containers[0], recorded, true, shown)
		if diff := cmp.Diff(p.Spec.Containers[0].Resources, got, cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("%v: %s", shown, diff)
		}
	}
}
