package status

import v1 "k8s.io/api/core/v1"

// TwinNormalize is normalizeStatus.
func TwinNormalize(p *v1.Pod, s *v1.PodStatus) { normalizeStatus(p, s) }
