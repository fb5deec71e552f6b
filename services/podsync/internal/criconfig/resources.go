package criconfig

import (
	"math"
	"os"
	"strconv"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	resourcehelper "k8s.io/component-helpers/resource"

	"github.com/microlet/microlet/services/internal/podutil"
	"github.com/microlet/microlet/services/podsync/internal/cgroups"
)

// linuxResources are the CPU and memory settings alike for sandboxes and containers.
func linuxResources(n *Node, cpuRequest, cpuLimit, memoryLimit *resource.Quantity) *runtimeapi.LinuxContainerResources {
	r := &runtimeapi.LinuxContainerResources{
		CpuShares:          int64(cgroups.MilliCPUToShares(cpuRequest.MilliValue())),
		MemoryLimitInBytes: memoryLimit.Value(),
	}
	if n.CPUCFSQuota {
		r.CpuPeriod = n.periodMicros()
		r.CpuQuota = cgroups.MilliCPUToQuota(cpuLimit.MilliValue(), r.CpuPeriod)
	}
	if n.wholeGroupOOM() {
		r.Unified = map[string]string{"memory.oom.group": "1"}
	}
	return r
}

// containerResources are the limits of one container. What it does not limit itself, a
// limit of the pod as a whole limits.
func containerResources(p *v1.Pod, c *v1.Container, n *Node) *runtimeapi.LinuxContainerResources {
	cpuLimit, memoryLimit := c.Resources.Limits.Cpu(), c.Resources.Limits.Memory()
	podLevel := resourcehelper.IsPodLevelResourcesSet(p)
	if podLevel && cpuLimit.IsZero() {
		cpuLimit = p.Spec.Resources.Limits.Cpu()
	}
	if podLevel && memoryLimit.IsZero() {
		memoryLimit = p.Spec.Resources.Limits.Memory()
	}
	cpuRequest := cpuLimit
	if q, ok := c.Resources.Requests[v1.ResourceCPU]; ok {
		cpuRequest = &q
	}
	r := linuxResources(n, cpuRequest, cpuLimit, memoryLimit)
	r.OomScoreAdj = oomScoreAdj(p, c, n.MemoryCapacity)
	r.HugepageLimits = hugePageLimits(p, c, n)
	limitSwap(r, p, c, n)
	if n.Unified {
		if r.Unified == nil {
			r.Unified = map[string]string{}
		}
		memoryQoS(r.Unified, p, c, n)
	}
	return r
}

// hugePageLimits limits every page size of the kernel, to 0 where none is asked for.
func hugePageLimits(p *v1.Pod, c *v1.Container, n *Node) []*runtimeapi.HugepageLimit {
	want := map[string]int64{}
	if resourcehelper.IsPodLevelResourcesSet(p) {
		want = cgroups.HugePages(p.Spec.Resources.Limits)
	}
	for page, amount := range cgroups.HugePages(c.Resources.Limits) {
		want[page] = amount
	}
	var limits []*runtimeapi.HugepageLimit
	for _, page := range n.HugePageSizes {
		limits = append(limits, &runtimeapi.HugepageLimit{PageSize: page, Limit: uint64(max(want[page], 0))})
	}
	return limits
}

// limitSwap keeps a container from swapping, or gives it a share of swap as large as its
// request's share of memory (KEP-2400).
func limitSwap(r *runtimeapi.LinuxContainerResources, p *v1.Pod, c *v1.Container, n *Node) {
	if !n.SwapController {
		return
	}
	if !n.Unified {
		// The limit counts memory and swap together: equal to memory's, it leaves none for swap.
		r.MemorySwapLimitInBytes = r.MemoryLimitInBytes
		return
	}
	var swap int64
	request := c.Resources.Requests.Memory()
	if n.swaps(p, c) && n.MemoryCapacity > 0 && request.Value() <= n.MemoryCapacity {
		swap = int64(float64(request.Value()) / float64(n.MemoryCapacity) * float64(n.SwapCapacity))
	}
	if r.Unified == nil {
		r.Unified = map[string]string{}
	}
	r.Unified["memory.swap.max"] = strconv.FormatInt(swap, 10)
}

// swaps reports whether a container gets a share of swap.
func (n *Node) swaps(p *v1.Pod, c *v1.Container) bool {
	request, limit := c.Resources.Requests.Memory(), c.Resources.Limits.Memory()
	return n.Unified && n.SwapController && n.SwapBehavior == LimitedSwap && !podutil.IsCritical(p) &&
		podutil.QOSClass(p) == v1.PodQOSBurstable && !request.IsZero() && request.Cmp(*limit) != 0
}

// Swaps reports whether a container gets a share of swap, which its memory request decides.
func (b *Builder) Swaps(p *v1.Pod, c *v1.Container) bool {
	return b.Node.SwapCapacity > 0 && b.Node.swaps(p, c)
}

// memoryQoS sets cgroup v2's protection of requests and its throttle below the limit (KEP-2570).
func memoryQoS(unified map[string]string, p *v1.Pod, c *v1.Container, n *Node) {
	if !n.MemoryQoS {
		unified["memory.high"] = "max"
		return
	}
	request, limit := c.Resources.Requests.Memory().Value(), c.Resources.Limits.Memory().Value()
	switch {
	case request == 0 || !n.MemoryReservation:
		unified["memory.min"], unified["memory.low"] = "0", "0"
	case podutil.QOSClass(p) == v1.PodQOSGuaranteed:
		unified["memory.min"] = strconv.FormatInt(request, 10)
	default:
		unified["memory.low"] = strconv.FormatInt(request, 10)
	}
	// With a limit on the pod as a whole, the pod's own cgroup throttles.
	byPod := limit == 0 && resourcehelper.IsPodLevelResourcesSet(p) && !p.Spec.Resources.Limits.Memory().IsZero()
	if n.MemoryThrottlingFactor == nil || byPod || request == limit && request != 0 {
		return
	}
	upTo := limit
	if upTo == 0 {
		allocatable := n.allocatable()
		upTo = allocatable.Memory().Value()
	}
	if upTo <= 0 {
		return
	}
	page := int64(os.Getpagesize())
	high := int64(math.Floor(float64(request)+(float64(upTo)-float64(request))*(*n.MemoryThrottlingFactor))/float64(
		page)) * page
	if high > request {
		unified["memory.high"] = strconv.FormatInt(high, 10)
	}
}
