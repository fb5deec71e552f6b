package pod

import (
	"maps"

	v1 "k8s.io/api/core/v1"
)

// Own returns the resources that a container of p was given, as far as these are known, without the limits that it has
// from the pod as a whole. r has what was given, and p what is granted.
func (r Resources) Own(p *v1.Pod, c *v1.Container) (own v1.ResourceRequirements, known bool) {
	own, known = r.Containers[c.Name]
	own.Limits = maps.Clone(own.Limits)
	for name := range own.Limits {
		if _, granted := c.Resources.Limits[name]; !granted && (limited(r.Pod, name) || limited(p.Spec.Resources, name)) {
			delete(own.Limits, name)
		}
	}
	return own, known
}

func limited(r *v1.ResourceRequirements, name v1.ResourceName) bool {
	if r == nil {
		return false
	}
	_, has := r.Limits[name]
	return has
}
