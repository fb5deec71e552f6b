// Package preemption selects the pods that must end so that a critical pod can start.
//
// The choice is the kubelet's, and the same input gives the same choice. A pod is selected only for a pod that may
// preempt it. Pods of a better QoS class are spared while worse ones suffice. The result is in the order in which
// the pods end.
package preemption

import (
	"fmt"
	"math"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	resourcehelper "k8s.io/component-helpers/resource"

	"github.com/microlet/microlet/services/internal/podutil"
)

// Need is how much of a resource must become free.
type Need struct {
	Resource v1.ResourceName
	// Amount in thousandths of a CPU, else in whole units; above 0.
	Amount int64
}

// Victims returns the pods that must end for preemptor. It fails if no set of them frees
// all that is needed.
func Victims(preemptor *v1.Pod, pods []*v1.Pod, needs []Need) ([]*v1.Pod, error) {
	classes := map[v1.PodQOSClass][]*candidate{}
	for _, p := range pods {
		if mayPreempt(preemptor, p) {
			class := podutil.QOSClass(p)
			classes[class] = append(classes[class], newCandidate(p))
		}
	}
	bestEffort, burstable, guaranteed := classes[v1.PodQOSBestEffort], classes[v1.PodQOSBurstable],
		classes[v1.PodQOSGuaranteed]
	if left := without(needs, bestEffort, burstable, guaranteed); len(left) > 0 {
		return nil, impossible(left)
	}
	// From the best class to the worst: what each must give although all of the worse ones
	// and those already chosen of the better ones have gone.
	chosenGuaranteed, err := nearest(guaranteed, without(needs, bestEffort, burstable))
	if err != nil {
		return nil, err
	}
	chosenBurstable, err := nearest(burstable, without(needs, bestEffort, chosenGuaranteed))
	if err != nil {
		return nil, err
	}
	chosenBestEffort, err := nearest(bestEffort, without(needs, chosenBurstable, chosenGuaranteed))
	if err != nil {
		return nil, err
	}
	var victims []*v1.Pod
	for _, c := range slices.Concat(chosenBestEffort, chosenBurstable, chosenGuaranteed) {
		victims = append(victims, c.pod)
	}
	return victims, nil
}

// mayPreempt spares critical pods, save those of a lower priority than the preemptor's.
func mayPreempt(preemptor, p *v1.Pod) bool {
	if podutil.IsCritical(preemptor) && !podutil.IsCritical(p) {
		return true
	}
	return preemptor.Spec.Priority != nil && p.Spec.Priority != nil && *preemptor.Spec.Priority > *p.Spec.Priority
}

// candidate is a pod and what its end frees.
type candidate struct {
	pod   *v1.Pod
	frees v1.ResourceList
}

func newCandidate(p *v1.Pod) *candidate {
	podLevel := resourcehelper.IsPodLevelResourcesSet(p)
	frees := resourcehelper.PodRequests(p, resourcehelper.PodResourcesOptions{
		ExcludeOverhead: true, SkipContainerLevelResources: podLevel,
	})
	for name, overhead := range p.Spec.Overhead {
		// The kubelet counts overhead on top of a request only.
		if q, ok := frees[name]; ok && !q.IsZero() {
			q.Add(overhead)
			frees[name] = q
		}
	}
	return &candidate{p, frees}
}

func (c *candidate) amount(name v1.ResourceName) int64 {
	if name == v1.ResourcePods {
		return 1
	}
	return podutil.Amount(name, c.frees[name])
}

// distance is how far the pod is from freeing everything: for each need the square of the
// share that it leaves.
func (c *candidate) distance(needs []Need) float64 {
	sum := 0.0
	for _, n := range needs {
		if left := float64(n.Amount - c.amount(n.Resource)); left > 0 {
			sum += math.Pow(left/float64(n.Amount), 2)
		}
	}
	return sum
}

// smaller reports whether c requests no more than other: memory counts first, then CPU.
func (c *candidate) smaller(other *candidate) bool {
	for _, name := range []v1.ResourceName{v1.ResourceMemory, v1.ResourceCPU} {
		if a, b := c.amount(name), other.amount(name); a != b {
			return a < b
		}
	}
	return true
}

// nearest chooses one candidate after another, each time the one that comes nearest to
// what is still needed and, of equally near ones, the smaller.
func nearest(from []*candidate, needs []Need) ([]*candidate, error) {
	from = slices.Clone(from)
	var chosen []*candidate
	for len(needs) > 0 {
		if len(from) == 0 {
			return nil, impossible(needs)
		}
		best, shortest := 0, math.Inf(1)
		for i, c := range from {
			if d := c.distance(needs); d < shortest || d == shortest && c.smaller(from[best]) {
				best, shortest = i, d
			}
		}
		chosen = append(chosen, from[best])
		needs = without(needs, from[best:best+1])
		last := len(from) - 1
		from[best] = from[last]
		from = from[:last]
	}
	return chosen, nil
}

// without is what is still needed when these pods have gone.
func without(needs []Need, gone ...[]*candidate) []Need {
	var left []Need
	for _, n := range needs {
		for _, c := range slices.Concat(gone...) {
			n.Amount -= c.amount(n.Resource)
		}
		if n.Amount > 0 {
			left = append(left, n)
		}
	}
	return left
}

// impossible is the kubelet's error, of which the pod's message is made.
func impossible(left []Need) error {
	var list strings.Builder
	for _, n := range left {
		fmt.Fprintf(&list, "(res: %v, q: %d), ", n.Resource, n.Amount)
	}
	return fmt.Errorf("preemption: error finding a set of pods to preempt: no set of running pods found to reclaim "+
		"resources: [%s]", list.String())
}
