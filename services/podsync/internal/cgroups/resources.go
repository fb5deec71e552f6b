package cgroups

import (
	"os"
	"strconv"

	"k8s.io/utils/ptr"

	v1 "k8s.io/api/core/v1"
	resourcehelper "k8s.io/component-helpers/resource"

	"github.com/microlet/microlet/services/internal/podutil"
)

// resources is what a cgroup is given; nil leaves a value as it is.
type resources struct {
	shares *uint64
	quota  *int64
	period *uint64
	memory *int64
	pids   *int64
	// hugePages by page name; a size that is not named is limited to 0. nil: not set at all.
	hugePages map[string]int64
	// unified are cgroup v2 files, ignored with v1.
	unified map[string]string
	// allCPUs names every CPU of the hierarchy: systemd drops a controller that no unit asks for, and the tree would
	// count as incomplete. The kubelet names them with either driver.
	allCPUs bool
	// checked: a memory limit below what is used is refused. cgroup v1 refuses it in any case, v2 kills.
	checked bool
}

// podResources is what the pod's own cgroup gets.
func (m *Manager) podResources(p *v1.Pod) resources {
	requests := resourcehelper.PodRequests(p, resourcehelper.PodResourcesOptions{})
	limits := resourcehelper.PodLimits(p, resourcehelper.PodResourcesOptions{})
	cpuLimited, memoryLimited := limitsDeclared(p)

	quota := MilliCPUToQuota(limits.Cpu().MilliValue(), m.periodMicros())
	if !m.o.CPUCFSQuota {
		quota = -1
	}
	shares := MilliCPUToShares(requests.Cpu().MilliValue())
	memory := limits.Memory().Value()

	r := resources{shares: &shares, hugePages: HugePages(requests)}
	switch podutil.QOSClass(p) {
	case v1.PodQOSGuaranteed:
		r.quota, r.period, r.memory = &quota, ptr.To(uint64(m.periodMicros())), &memory
	case v1.PodQOSBurstable:
		if cpuLimited {
			r.quota, r.period = &quota, ptr.To(uint64(m.periodMicros()))
		}
		if memoryLimited {
			r.memory = &memory
		}
	default:
		r.shares = ptr.To[uint64](MinShares)
	}
	if m.o.PodPidsLimit > 0 {
		r.pids = &m.o.PodPidsLimit
	}
	if m.o.MemoryThrottlingFactor != nil && memoryLimited && resourcehelper.IsPodLevelResourcesSet(p) {
		r.unified = memoryHigh(requests.Memory().Value(), memory, *m.o.MemoryThrottlingFactor)
	}
	if request := requests.Memory().Value(); m.o.MemoryReservation && request > 0 {
		if r.unified == nil {
			r.unified = map[string]string{}
		}
		r.unified[ProtectedFile(p)] = strconv.FormatInt(request, 10)
	}
	return r
}

// memoryHigh throttles a pod as a whole from somewhere between its request and its limit
// (KEP-2570), at the border of a page. nil: at the limit alone.
func memoryHigh(request, limit int64, factor float64) map[string]string {
	if limit == 0 || request == limit {
		return nil
	}
	page := int64(os.Getpagesize())
	high := int64(float64(request)+float64(limit-request)*factor) / page * page
	if high <= request {
		return nil
	}
	return map[string]string{"memory.high": strconv.FormatInt(high, 10)}
}

// limitsDeclared reports whether the pod as a whole may be limited: every container has the
// limit, or the pod itself has.
func limitsDeclared(p *v1.Pod) (cpu, memory bool) {
	cpu, memory = true, true
	for c := range podutil.Containers(&p.Spec) {
		cpu = cpu && !c.Resources.Limits.Cpu().IsZero()
		memory = memory && !c.Resources.Limits.Memory().IsZero()
	}
	if resourcehelper.IsPodLevelResourcesSet(p) {
		cpu = cpu || !p.Spec.Resources.Limits.Cpu().IsZero()
		memory = memory || !p.Spec.Resources.Limits.Memory().IsZero()
	}
	return cpu, memory
}

// nodeResources is what the root of all pods gets: the node's allocatable when that is
// enforced. CPU shares are always set, because the kernel's default starves pods.
func (m *Manager) nodeResources() resources {
	list := m.o.Capacity
	if m.enforcesPods() {
		list = m.o.Allocatable
	}
	r := limitsOf(list)
	if !m.o.MemoryReservation {
		r.unified = map[string]string{"memory.min": "0", "memory.low": "0"}
	}
	return r
}

// limitsOf are the limits of a cgroup that is not a pod's. A resource that the list does not name stays as it is, but
// huge pages, of which there are none then.
func limitsOf(list v1.ResourceList) resources {
	r := resources{hugePages: HugePages(list), allCPUs: true}
	if q, ok := list[v1.ResourceMemory]; ok {
		r.memory = ptr.To(q.Value())
	}
	if q, ok := list[v1.ResourceCPU]; ok {
		r.shares = ptr.To(MilliCPUToShares(q.MilliValue()))
	}
	if q, ok := list[ResourcePIDs]; ok {
		r.pids = ptr.To(q.Value())
	}
	return r
}
