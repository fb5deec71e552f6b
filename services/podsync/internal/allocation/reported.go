package allocation

import (
	"slices"

	v1 "k8s.io/api/core/v1"

	"github.com/microlet/microlet/services/internal/podutil"
	"github.com/microlet/microlet/services/podsync/internal/pod"
)

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
	return pod.ResourcesOf(reported).Of(p)
}

// completed returns what a file says that was granted to p, with what the kubelet did not record. Without the feature
// gates of their resizes, which are off in earlier versions, it records neither init containers nor the resources of
// the pod as a whole, and reports none of these either.
func completed(r pod.Resources, p *v1.Pod) pod.Resources {
	p = withReportedResources(p)
	if r.Pod == nil && p.Status.AllocatedResources == nil {
		r.Pod = p.Spec.Resources
	}
	return pod.ResourcesOf(r.Of(p))
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
