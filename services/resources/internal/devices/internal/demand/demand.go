// Package demand reads from a pod what its containers ask plugins for.
package demand

import (
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/microlet/microlet/services/internal/podutil"
)

// Container is what one container asks for.
type Container struct {
	Name string
	// Ends: it is over before the next container starts, which may have its devices.
	Ends bool
	// Counts are in the order of their resources.
	Counts []Count
}

// Count is how many devices of a resource a container asks for: one at least.
type Count struct {
	Resource string
	Devices  int64
}

// Of returns what the containers of a pod ask for of known resources, init containers first. Requests of extended
// resources equal the limits. What dynamic resource allocation has for a container is none of a plugin's.
func Of(pod *v1.Pod, known func(resource string) bool) []Container {
	all := make([]Container, 0, len(pod.Spec.InitContainers)+len(pod.Spec.Containers))
	for i := range pod.Spec.InitContainers {
		c := &pod.Spec.InitContainers[i]
		all = append(all, Container{Name: c.Name, Ends: !podutil.IsSidecar(c), Counts: counts(pod, c, known)})
	}
	for i := range pod.Spec.Containers {
		c := &pod.Spec.Containers[i]
		all = append(all, Container{Name: c.Name, Counts: counts(pod, c, known)})
	}
	return slices.DeleteFunc(all, func(c Container) bool { return len(c.Counts) == 0 })
}

func counts(pod *v1.Pod, c *v1.Container, known func(string) bool) []Count {
	var found []Count
	for name, quantity := range c.Resources.Limits {
		if resource := string(name); quantity.Value() > 0 && known(resource) && !claimed(pod, c.Name, resource) {
			found = append(found, Count{resource, quantity.Value()})
		}
	}
	slices.SortFunc(found, func(a, b Count) int { return strings.Compare(a.Resource, b.Resource) })
	return found
}

// claimed reports whether a ResourceClaim of the scheduler's stands for the container's extended resource.
// https://kep.k8s.io/5004
func claimed(pod *v1.Pod, container, resource string) bool {
	claim := pod.Status.ExtendedResourceClaimStatus
	return claim != nil && slices.ContainsFunc(claim.RequestMappings, func(m v1.ContainerExtendedResourceRequest) bool {
		return m.ContainerName == container && m.ResourceName == resource
	})
}
