package podutil

import v1 "k8s.io/api/core/v1"

const (
	// ConfigSourceAnnotation names the source of a pod: "file", "http" or, if at all, "api".
	ConfigSourceAnnotation = "kubernetes.io/config.source"

	// SystemCriticalPriority is the least priority of a pod that the cluster cannot do without. Those of users
	// are lower.
	SystemCriticalPriority = 2_000_000_000

	// SystemNodeCritical is the priority class of pods that a node cannot do without.
	SystemNodeCritical = "system-node-critical"

	apiSource = "api"
)

// IsStatic reports whether the pod comes from the node itself and not from the API server.
func IsStatic(p *v1.Pod) bool {
	source, ok := p.Annotations[ConfigSourceAnnotation]
	return ok && source != apiSource
}

// IsMirror reports whether the pod is the picture of a static pod in the API.
func IsMirror(p *v1.Pod) bool {
	_, ok := p.Annotations[v1.MirrorPodAnnotationKey]
	return ok
}

// IsCritical reports whether the node must run the pod: a static pod, its mirror, or one of a priority of the system's.
func IsCritical(p *v1.Pod) bool {
	return IsStatic(p) || IsMirror(p) || p.Spec.Priority != nil && *p.Spec.Priority >= SystemCriticalPriority
}

// OwnUsers reports whether the pod has a user namespace of its own (hostUsers: false).
func OwnUsers(s *v1.PodSpec) bool { return s.HostUsers != nil && !*s.HostUsers }
