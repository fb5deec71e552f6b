package pods

import (
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"

	"github.com/microlet/microlet/services/internal/podutil"
)

// A resize of a pod that runs (KEP-1287) is not built. The pod's spec has the resources that it wants, which the node
// did not admit. The pod keeps the resources that it has, also for containers that start again, for the shares of QoS
// classes and for the ranking for eviction.

// resized reports whether p asks for other resources than its older version.
func resized(old, p *v1.Pod) bool {
	same := func(a, b v1.Container) bool { return equality.Semantic.DeepEqual(a.Resources, b.Resources) }
	return !equality.Semantic.DeepEqual(old.Spec.Resources, p.Spec.Resources) ||
		!slices.EqualFunc(old.Spec.Containers, p.Spec.Containers, same) ||
		!slices.EqualFunc(old.Spec.InitContainers, p.Spec.InitContainers, same)
}

// withResourcesOf returns p with the resources of its older version.
func withResourcesOf(old, p *v1.Pod) *v1.Pod {
	if !resized(old, p) {
		return p
	}
	p = p.DeepCopy()
	p.Spec.Resources = old.Spec.Resources
	for c := range podutil.Containers(&p.Spec) {
		if before := podutil.Container(&old.Spec, c.Name); before != nil {
			c.Resources = before.Resources
		}
	}
	return p
}

// withReportedResources returns p with the resources that its status shows. A node agent gave it these before podsync
// started.
func withReportedResources(p *v1.Pod) *v1.Pod {
	statuses := slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses)
	if !slices.ContainsFunc(statuses, func(s v1.ContainerStatus) bool { return s.ContainerID != "" }) {
		return p // nothing of it has run
	}
	reported := p.DeepCopy()
	for c := range podutil.Containers(&reported.Spec) {
		if s := podutil.ContainerStatus(statuses, c.Name); s != nil && s.ContainerID != "" {
			setReported(&c.Resources, s.AllocatedResources, s.Resources)
		}
	}
	// The status counts overhead too.
	if of := reported.Spec.Resources; of != nil && len(p.Spec.Overhead) == 0 {
		setReported(of, p.Status.AllocatedResources, p.Status.Resources)
	}
	return withResourcesOf(reported, p)
}

// setReported gives requirements the CPU and memory of a status, as far as it shows any.
func setReported(r *v1.ResourceRequirements, allocated v1.ResourceList, has *v1.ResourceRequirements) {
	if allocated != nil {
		setAmounts(r.Requests, allocated)
	}
	if has != nil {
		setAmounts(r.Limits, has.Limits)
	}
}

func setAmounts(list, reported v1.ResourceList) {
	for _, name := range []v1.ResourceName{v1.ResourceCPU, v1.ResourceMemory} {
		_, wanted := list[name]
		amount, has := reported[name]
		switch {
		case wanted && has:
			list[name] = amount
		case wanted:
			delete(list, name)
		}
	}
}
