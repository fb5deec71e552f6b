package manager

import (
	"cmp"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	kubeletv1beta1 "k8s.io/kubelet/config/v1beta1"

	"github.com/microlet/microlet/services/internal/kubeletconfig"
	"github.com/microlet/microlet/services/internal/podutil"
)

// Phase is one step of a shutdown. See KEP-2712.
type Phase struct {
	// Priority is the least one of the phase's pods. Pods below the first phase's belong to it too.
	Priority int32
	// Period is how long the pods have to end, in whole seconds.
	Period time.Duration
}

// Phases are those of a configuration, in their order; none: a shutdown is not delayed.
func Phases(k *kubeletconfig.Config) []Phase {
	if !k.DelaysShutdown() {
		return nil
	}
	return phases(k.Kubelet.ShutdownGracePeriodByPodPriority, k.Kubelet.ShutdownGracePeriod.Duration,
		k.Kubelet.ShutdownGracePeriodCriticalPods.Duration)
}

func phases(byPriority []kubeletv1beta1.ShutdownGracePeriodByPodPriority, total, critical time.Duration) []Phase {
	var all []Phase
	for _, p := range byPriority {
		all = append(all, Phase{
			Priority: p.Priority, Period: time.Duration(p.ShutdownGracePeriodSeconds) * time.Second,
		})
	}
	if len(all) == 0 && total > 0 {
		all = []Phase{
			{Priority: 0, Period: (total - critical).Truncate(time.Second)},
			{Priority: podutil.SystemCriticalPriority, Period: critical.Truncate(time.Second)},
		}
	}
	slices.SortStableFunc(all, func(a, b Phase) int { return cmp.Compare(a.Priority, b.Priority) })
	return all
}

// Total is how long all phases take at most.
func Total(phases []Phase) time.Duration {
	var total time.Duration
	for _, p := range phases {
		total += p.Period
	}
	return total
}

// phaseOf is the phase in which a pod ends: the last one with a priority that the pod reaches.
func phaseOf(phases []Phase, p *v1.Pod) int {
	var priority int32
	if p.Spec.Priority != nil {
		priority = *p.Spec.Priority
	}
	i, reached := slices.BinarySearchFunc(phases, priority, func(phase Phase, priority int32) int {
		return cmp.Compare(phase.Priority, priority)
	})
	if reached {
		return i
	}
	return max(i-1, 0)
}
