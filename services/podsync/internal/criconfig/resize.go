package criconfig

import (
	"strconv"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	v1 "k8s.io/api/core/v1"

	"github.com/microlet/microlet/services/podsync/internal/cgroups"
	"github.com/microlet/microlet/services/podsync/internal/pod"
)

// removed takes a limit away. 0 leaves it as it is.
const removed = -1

// ContainerResources are those that a container of the pod is created with.
func (b *Builder) ContainerResources(p *v1.Pod, c *v1.Container) *runtimeapi.LinuxContainerResources {
	return containerResources(p, c, &b.Node)
}

// ContainerUpdate is what a container that runs is given for these resources. Limits that it is not to have are taken
// away. Huge pages cannot change.
func (b *Builder) ContainerUpdate(p *v1.Pod, c *v1.Container) *runtimeapi.LinuxContainerResources {
	r := containerResources(p, c, &b.Node)
	r.HugepageLimits = nil
	if r.MemoryLimitInBytes == 0 {
		r.MemoryLimitInBytes = removed
		if b.Node.SwapController && !b.Node.Unified { // counts memory too
			r.MemorySwapLimitInBytes = removed
		}
	}
	if b.Node.CPUCFSQuota && r.CpuQuota == 0 {
		r.CpuQuota = removed
	}
	if _, has := r.Unified["memory.high"]; b.Node.Unified && !has {
		r.Unified["memory.high"] = "max"
	}
	return r
}

// SandboxUpdate is what the runtime gets before the cgroup of the pod has these limits: what its containers have
// together, and the overhead.
func (b *Builder) SandboxUpdate(p *v1.Pod,
	l pod.CgroupLimits) (resources, ofOverhead *runtimeapi.LinuxContainerResources) {
	cpu, memory := p.Spec.Overhead.Cpu().MilliValue(), p.Spec.Overhead.Memory().Value()
	less := func(limit, overhead int64) int64 {
		if limit == pod.Unlimited {
			return removed
		}
		return limit - overhead
	}
	resources = &runtimeapi.LinuxContainerResources{
		CpuPeriod: l.CPUPeriod, CpuQuota: less(l.CPUQuota, cgroups.MilliCPUToQuota(cpu, l.CPUPeriod)),
		CpuShares: int64(l.CPUShares), MemoryLimitInBytes: less(l.MemoryLimit, memory),
	}
	if cpu > 0 {
		resources.CpuShares = int64(cgroups.MilliCPUToShares(cgroups.SharesToMilliCPU(l.CPUShares) - cpu))
	}
	unified := map[string]string{}
	if l.MemoryHigh != pod.Unlimited {
		unified["memory.high"] = strconv.FormatInt(l.MemoryHigh, 10)
	}
	if l.MemoryProtected != 0 {
		unified[cgroups.ProtectedFile(p)] = strconv.FormatInt(l.MemoryProtected, 10)
	}
	if len(unified) > 0 {
		resources.Unified = unified
	}
	return resources, overhead(p, &b.Node)
}
