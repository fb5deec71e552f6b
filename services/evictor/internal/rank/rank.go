// Package rank orders pods for eviction as the kubelet does.
//
// For memory and disk the pods come first that use more than they request, then those of lower priority, then those
// that use the most above their request. For process IDs it is priority, then their number. A pod without figures comes
// before those with figures.
package rank

import (
	"cmp"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	resourcehelper "k8s.io/component-helpers/resource"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"
	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"github.com/microlet/microlet/services/evictor/internal/signal"
	"github.com/microlet/microlet/services/evictor/internal/threshold"
)

// Figures returns what a pod uses, nil if that is not known.
type Figures func(p *v1.Pod) *statsapi.PodStats

// By orders the pods for a signal, the first to evict first. Pods that are alike keep their order.
func By(s signal.Signal, l threshold.Layout, pods []*v1.Pod, figures Figures) {
	var order []func(a, b *v1.Pod) int
	switch s.Resource() {
	case v1.ResourceMemory:
		use := usage{v1.ResourceMemory, v1.ResourceMemory, func(_ *v1.Pod, f *statsapi.PodStats) int64 {
			return workingSet(f.Memory)
		}}
		order = use.order(figures)
	case v1.ResourceEphemeralStorage, signal.Inodes:
		what := diskParts(s, l)
		use := usage{s.Resource(), v1.ResourceEphemeralStorage, func(p *v1.Pod, f *statsapi.PodStats) int64 {
			return diskUsage(p, f, what, s.Resource())
		}}
		order = use.order(figures)
	case signal.PIDs:
		order = []func(a, b *v1.Pod) int{byPriority, known(figures, func(a, b *v1.Pod) int {
			return cmp.Compare(processes(figures(b)), processes(figures(a)))
		})}
	}
	slices.SortStableFunc(pods, func(a, b *v1.Pod) int {
		for _, by := range order {
			if c := by(a, b); c != 0 {
				return c
			}
		}
		return 0
	})
}

// usage compares pods by one resource.
type usage struct {
	// exceeds is the resource by which a pod counts as above its requests. above is the resource of the request that is
	// subtracted from the usage. The kubelet subtracts the request of ephemeral-storage from inodes too.
	exceeds, above v1.ResourceName
	of             func(p *v1.Pod, f *statsapi.PodStats) int64
}

func (u usage) order(figures Figures) []func(a, b *v1.Pod) int {
	exceeds := func(p *v1.Pod) int {
		request := Request(p, u.exceeds)
		if request.CmpInt64(u.of(p, figures(p))) < 0 {
			return 0
		}
		return 1
	}
	above := func(p *v1.Pod) *resource.Quantity {
		q := resource.NewQuantity(u.of(p, figures(p)), resource.BinarySI)
		q.Sub(Request(p, u.above))
		return q
	}
	return []func(a, b *v1.Pod) int{
		known(figures, func(a, b *v1.Pod) int { return cmp.Compare(exceeds(a), exceeds(b)) }),
		byPriority,
		known(figures, func(a, b *v1.Pod) int { return above(b).Cmp(*above(a)) }),
	}
}

// known puts pods without figures first, and compares those that have them.
func known(figures Figures, compare func(a, b *v1.Pod) int) func(a, b *v1.Pod) int {
	return func(a, b *v1.Pod) int {
		hasA, hasB := figures(a) != nil, figures(b) != nil
		switch {
		case hasA && hasB:
			return compare(a, b)
		case hasA:
			return 1
		case hasB:
			return -1
		}
		return 0
	}
}

func byPriority(a, b *v1.Pod) int {
	return cmp.Compare(corev1helpers.PodPriority(a), corev1helpers.PodPriority(b))
}

// Request is what a pod requests of a resource, its overhead included if it requests any.
func Request(p *v1.Pod, name v1.ResourceName) resource.Quantity {
	total := resourcehelper.PodRequests(p, resourcehelper.PodResourcesOptions{
		SkipContainerLevelResources: resourcehelper.IsPodLevelResourcesSet(p), ExcludeOverhead: true,
	})[name].DeepCopy()
	if overhead, ok := p.Spec.Overhead[name]; ok && !total.IsZero() {
		total.Add(overhead)
	}
	return total
}

func workingSet(m *statsapi.MemoryStats) int64 {
	if m == nil || m.WorkingSetBytes == nil {
		return 0
	}
	return int64(*m.WorkingSetBytes)
}

func processes(f *statsapi.PodStats) uint64 {
	if f == nil || f.ProcessStats == nil || f.ProcessStats.ProcessCount == nil {
		return 0
	}
	return *f.ProcessStats.ProcessCount
}
