package criconfig

import (
	v1 "k8s.io/api/core/v1"
	resourcehelper "k8s.io/component-helpers/resource"

	"github.com/microlet/microlet/services/internal/podutil"
)

// Scores of those whom the kernel kills last and first when memory runs out.
const (
	guaranteedOOMScore = -997
	bestEffortOOMScore = 1000
)

// oomScoreAdj is how readily the kernel kills the container when memory runs out: among
// burstable ones, the more readily the smaller the share of memory that it requests.
func oomScoreAdj(p *v1.Pod, c *v1.Container, memoryCapacity int64) int64 {
	if podutil.IsCritical(p) && p.Spec.PriorityClassName == podutil.SystemNodeCritical {
		return guaranteedOOMScore
	}
	switch podutil.QOSClass(p) {
	case v1.PodQOSGuaranteed:
		return guaranteedOOMScore
	case v1.PodQOSBestEffort:
		return bestEffortOOMScore
	}
	if memoryCapacity <= 0 {
		return bestEffortOOMScore - 1
	}
	// What the pod requests as a whole beyond its containers is shared among them.
	var shared int64
	if resourcehelper.IsPodLevelRequestsSet(p) {
		if count := int64(len(p.Spec.Containers) + len(p.Spec.InitContainers)); count > 0 {
			inContainers := resourcehelper.AggregateContainerRequests(p, resourcehelper.PodResourcesOptions{})
			shared = max(p.Spec.Resources.Requests.Memory().Value()-inContainers.Memory().Value(), 0) / count
		}
	}
	score := func(request int64) int64 { return 1000 - 1000*(request+shared)/memoryCapacity }
	adjust := score(c.Resources.Requests.Memory().Value())
	if sidecar(p, c) && len(p.Spec.Containers) > 0 {
		// A sidecar must not die before those whom it serves.
		least := p.Spec.Containers[0].Resources.Requests.Memory().Value()
		for i := range p.Spec.Containers {
			least = min(least, p.Spec.Containers[i].Resources.Requests.Memory().Value())
		}
		adjust = min(adjust, score(least))
	}
	// Always between the guaranteed ones, at their worst, and those without any request.
	return min(max(adjust, 1000+guaranteedOOMScore), bestEffortOOMScore-1)
}

func sidecar(p *v1.Pod, c *v1.Container) bool {
	return podutil.IsSidecar(c) && podutil.IsInit(&p.Spec, c.Name)
}
