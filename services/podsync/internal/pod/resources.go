package pod

import (
	"maps"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"

	"github.com/microlet/microlet/services/internal/podutil"
)

// Resources are the resources of a pod's containers and of the pod as a whole: those that its spec asks for, those that
// the node has granted, or those that were last given to the runtime and the cgroups (KEP-1287). They are shared: do
// not change them.
type Resources struct {
	// Containers by name, init containers too. Ephemeral containers have no resources.
	Containers map[string]v1.ResourceRequirements
	// Pod has the pod-level resources (KEP-2837); nil for a pod without.
	Pod *v1.ResourceRequirements
}

// ResourcesOf returns the resources that a pod's spec has.
func ResourcesOf(p *v1.Pod) Resources {
	r := Resources{Containers: map[string]v1.ResourceRequirements{}, Pod: p.Spec.Resources}
	for c := range podutil.Containers(&p.Spec) {
		r.Containers[c.Name] = c.Resources
	}
	return r
}

// Of returns p with these resources. A container that they do not name keeps its own. It is p itself if nothing
// differs.
func (r Resources) Of(p *v1.Pod) *v1.Pod {
	if r.Equal(ResourcesOf(p)) {
		return p
	}
	p = p.DeepCopy()
	p.Spec.Resources = r.Pod.DeepCopy()
	for c := range podutil.Containers(&p.Spec) {
		if has, ok := r.Containers[c.Name]; ok {
			c.Resources = *has.DeepCopy()
		}
	}
	return p
}

// Equal reports whether both have the same amounts.
func (r Resources) Equal(other Resources) bool {
	same := func(a, b v1.ResourceRequirements) bool { return equality.Semantic.DeepEqual(a, b) }
	return maps.EqualFunc(r.Containers, other.Containers, same) && equality.Semantic.DeepEqual(r.Pod, other.Pod)
}

// Effective returns the requirements of a container of a pod with these pod-level resources: the limits of the pod as a
// whole stand in for those that the container does not have itself.
func Effective(podLevel *v1.ResourceRequirements, container v1.ResourceRequirements) v1.ResourceRequirements {
	if podLevel == nil {
		return container
	}
	for _, name := range []v1.ResourceName{v1.ResourceCPU, v1.ResourceMemory} {
		own, whole := container.Limits[name], podLevel.Limits[name]
		if own.IsZero() && !whole.IsZero() {
			container.Limits = with(container.Limits, name, podLevel.Limits)
		}
	}
	return container
}

// With returns the requirements with what others have of one resource.
func With(r v1.ResourceRequirements, name v1.ResourceName, of v1.ResourceRequirements) v1.ResourceRequirements {
	r.Requests, r.Limits = with(r.Requests, name, of.Requests), with(r.Limits, name, of.Limits)
	return r
}

// with returns a copy of the list with the amount that another has of one resource.
func with(list v1.ResourceList, name v1.ResourceName, of v1.ResourceList) v1.ResourceList {
	list = maps.Clone(list)
	amount, has := of[name]
	switch {
	case !has:
		delete(list, name)
	case list == nil:
		return v1.ResourceList{name: amount}
	default:
		list[name] = amount
	}
	return list
}
