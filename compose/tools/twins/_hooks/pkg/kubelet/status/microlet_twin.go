package status

import (
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
)

// TwinNormalize is normalizeStatus.
func TwinNormalize(p *v1.Pod, s *v1.PodStatus) { normalizeStatus(p, s) }

// TwinTerminate is TerminatePod of a manager that has this status of the pod.
func TwinTerminate(p *v1.Pod, s v1.PodStatus) v1.PodStatus {
	m := &manager{podStatuses: map[types.UID]versionedPodStatus{p.UID: {status: s}}}
	m.TerminatePod(klog.Background(), p)
	return m.podStatuses[p.UID].status
}

// TwinMerge is mergePodStatus.
func TwinMerge(p *v1.Pod, old, s v1.PodStatus, mayRun bool) v1.PodStatus {
	return mergePodStatus(p, old, s, mayRun)
}
