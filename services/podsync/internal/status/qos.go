package status

import (
	"slices"

	v1 "k8s.io/api/core/v1"
	resourcehelper "k8s.io/component-helpers/resource"
)

// qos is the class that the API gave the pod at its creation; pods of other sources have
// none there, and it follows from their resources.
func (g *generator) qos() v1.PodQOSClass {
	switch {
	case g.in.QOS != "":
		return g.in.QOS
	case g.pod.Status.QOSClass != "":
		return g.pod.Status.QOSClass
	case resourcehelper.IsPodLevelResourcesSet(g.pod):
		return resourcesQOS(g.pod.Spec.Resources)
	}
	class := v1.PodQOSBestEffort
	for i, c := range slices.Concat(g.pod.Spec.InitContainers, g.pod.Spec.Containers) {
		of := resourcesQOS(&c.Resources)
		if i == 0 {
			class = of
		}
		if of != class || of == v1.PodQOSBurstable {
			return v1.PodQOSBurstable
		}
	}
	return class
}

// resourcesQOS looks at CPU and memory: Guaranteed if each is limited to what it requests,
// BestEffort if neither is asked for.
func resourcesQOS(r *v1.ResourceRequirements) v1.PodQOSClass {
	set, equal := 0, true
	for _, name := range []v1.ResourceName{v1.ResourceCPU, v1.ResourceMemory} {
		request, limit := r.Requests[name], r.Limits[name]
		equal = equal && request.Equal(limit)
		if !request.IsZero() || !limit.IsZero() {
			set++
		}
	}
	switch {
	case set == 0:
		return v1.PodQOSBestEffort
	case set == 2 && equal:
		return v1.PodQOSGuaranteed
	default:
		return v1.PodQOSBurstable
	}
}
