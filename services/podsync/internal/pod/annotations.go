package pod

// These are the annotations that the kubelet puts on containers. An agent recognizes containers by them when it takes
// over a node (upstream: pkg/kubelet/kuberuntime/labels.go). The labels of sandboxes and containers are in
// k8s.io/kubelet/pkg/types.
const (
	// AnnotationHash is of what makes the container another one, in hexadecimal.
	AnnotationHash = "io.kubernetes.container.hash"
	// AnnotationRestartCount is how often the container was started again before.
	AnnotationRestartCount = "io.kubernetes.container.restartCount"
	// AnnotationTerminationMessagePath and AnnotationTerminationMessagePolicy say where the container leaves its last
	// words.
	AnnotationTerminationMessagePath   = "io.kubernetes.container.terminationMessagePath"
	AnnotationTerminationMessagePolicy = "io.kubernetes.container.terminationMessagePolicy"
	// AnnotationPreStopHandler is the hook to run before the container is stopped, as JSON.
	AnnotationPreStopHandler = "io.kubernetes.container.preStopHandler"
	// AnnotationPorts are the ports of the container, as JSON.
	AnnotationPorts = "io.kubernetes.container.ports"
	// AnnotationDeletionGracePeriod and AnnotationTerminationGracePeriod are the pod's grace periods, in seconds.
	AnnotationDeletionGracePeriod    = "io.kubernetes.pod.deletionGracePeriod"
	AnnotationTerminationGracePeriod = "io.kubernetes.pod.terminationGracePeriod"
)
