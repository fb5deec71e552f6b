package pods

import (
	"os"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/microlet/microlet/services/podsync/internal/cgroups"
	"github.com/microlet/microlet/services/podsync/internal/pod"
)

// actuated returns what a container that runs has: what is recorded, corrected by what the runtime shows of it. The
// record may be missing or, after a crash, older than what was done. A container is never started again only because
// there is no record of it.
func (w *worker) actuated(p *v1.Pod, c *v1.Container, recorded v1.ResourceRequirements, isRecorded bool,
	shown *runtimeapi.LinuxContainerResources) v1.ResourceRequirements {
	granted := pod.Effective(p.Spec.Resources, c.Resources)
	if shown == nil && isRecorded {
		return recorded
	}
	// What is recorded has the limits that the pod as a whole had.
	before, alone := *c, *p
	before.Resources, alone.Spec.Resources = recorded, nil
	wants, was := w.deps.Config.ContainerResources(p, c), w.deps.Config.ContainerResources(&alone, &before)
	has := granted
	for name, same := range map[v1.ResourceName]func(a, b *runtimeapi.LinuxContainerResources) bool{
		v1.ResourceCPU: sameCPU, v1.ResourceMemory: sameMemory,
	} {
		switch {
		case shown != nil && same(shown, wants) && !(isRecorded && same(shown, was)):
			// What was granted has been given to it, although that is not recorded.
		case isRecorded:
			has = pod.With(has, name, recorded)
		case !restartsFor(c, name):
			has = pod.With(has, name, requirementsOf(shown, granted))
		}
	}
	return has
}

func restartsFor(c *v1.Container, name v1.ResourceName) bool {
	for _, policy := range c.ResizePolicy {
		if policy.ResourceName == name {
			return policy.RestartPolicy == v1.RestartContainer
		}
	}
	return false
}

func sameCPU(a, b *runtimeapi.LinuxContainerResources) bool {
	none := func(r *runtimeapi.LinuxContainerResources) bool {
		return r.GetCpuQuota() <= 0 || r.GetCpuPeriod() <= 0
	}
	if a.GetCpuShares() != b.GetCpuShares() || none(a) != none(b) {
		return false
	}
	return none(a) || a.GetCpuQuota()*b.GetCpuPeriod() == b.GetCpuQuota()*a.GetCpuPeriod()
}

// sameMemory compares whole pages, which are what the kernel counts.
func sameMemory(a, b *runtimeapi.LinuxContainerResources) bool {
	page := int64(os.Getpagesize())
	return max(a.GetMemoryLimitInBytes(), 0)/page == max(b.GetMemoryLimitInBytes(), 0)/page
}

// requirementsOf are those that a runtime shows; none if it shows nothing. It never shows the memory request.
func requirementsOf(shown *runtimeapi.LinuxContainerResources,
	granted v1.ResourceRequirements) v1.ResourceRequirements {
	var r v1.ResourceRequirements
	if shown == nil {
		return r
	}
	r.Requests, r.Limits = v1.ResourceList{}, v1.ResourceList{}
	if milli := cgroups.SharesToMilliCPU(uint64(max(shown.CpuShares, 0))); milli > 0 {
		r.Requests[v1.ResourceCPU] = *resource.NewMilliQuantity(milli, resource.DecimalSI)
	}
	if shown.CpuQuota > 0 && shown.CpuPeriod > 0 {
		r.Limits[v1.ResourceCPU] = *resource.NewMilliQuantity(shown.CpuQuota*1000/shown.CpuPeriod, resource.DecimalSI)
	}
	if shown.MemoryLimitInBytes > 0 {
		r.Limits[v1.ResourceMemory] = *resource.NewQuantity(shown.MemoryLimitInBytes, resource.BinarySI)
	}
	if request, has := granted.Requests[v1.ResourceMemory]; has {
		r.Requests[v1.ResourceMemory] = request
	}
	return r
}
