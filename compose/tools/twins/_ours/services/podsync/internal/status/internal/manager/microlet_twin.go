package manager

import v1 "k8s.io/api/core/v1"

// TwinMerged opens merged.
func TwinMerged(p *v1.Pod, want *v1.PodStatus) *v1.PodStatus { return merged(p, want) }
