package podutil

import (
	v1 "k8s.io/api/core/v1"
	resourcehelper "k8s.io/component-helpers/resource"
)

// QOSClass returns the pod's quality-of-service class: the one in its status, which the API server sets for good, else
// the one that its spec has.
func QOSClass(p *v1.Pod) v1.PodQOSClass {
	if p.Status.QOSClass != "" {
		return p.Status.QOSClass
	}
	if resourcehelper.IsPodLevelResourcesSet(p) {
		return requirementsClass(p.Spec.Resources)
	}
	var class v1.PodQOSClass
	for c := range Containers(&p.Spec) {
		one := requirementsClass(&c.Resources)
		switch {
		case class == "":
			class = one
		case class != one:
			return v1.PodQOSBurstable
		}
	}
	if class == "" {
		return v1.PodQOSBestEffort
	}
	return class
}

// requirementsClass is the class of one set of requirements: Guaranteed when CPU and memory each have a request that
// equals the limit, BestEffort when neither has any.
func requirementsClass(r *v1.ResourceRequirements) v1.PodQOSClass {
	var class v1.PodQOSClass
	for _, name := range []v1.ResourceName{v1.ResourceCPU, v1.ResourceMemory} {
		request, limit := r.Requests[name], r.Limits[name]
		one := v1.PodQOSBurstable
		switch {
		case request.IsZero() && limit.IsZero():
			one = v1.PodQOSBestEffort
		case request.Cmp(limit) == 0:
			one = v1.PodQOSGuaranteed
		}
		if class == "" {
			class = one
		} else if class != one {
			return v1.PodQOSBurstable
		}
	}
	return class
}
