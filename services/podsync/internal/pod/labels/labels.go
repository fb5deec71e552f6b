// Package labels names the annotations that the kubelet puts on containers.
//
// An agent recognizes containers by them when it takes over a node (upstream: pkg/kubelet/kuberuntime/labels.go).
// The labels of sandboxes and containers are in k8s.io/kubelet/pkg/types.
package labels

// Annotations of a container.
const (
	// ContainerHash is of what makes the container another one, in hexadecimal.
	ContainerHash = "io.kubernetes.container.hash"
	// ContainerRestartCount is how often the container was started again before.
	ContainerRestartCount = "io.kubernetes.container.restartCount"
	// ContainerTerminationMessagePath and ContainerTerminationMessagePolicy say where the container leaves its last
	// words.
	ContainerTerminationMessagePath   = "io.kubernetes.container.terminationMessagePath"
	ContainerTerminationMessagePolicy = "io.kubernetes.container.terminationMessagePolicy"
	// ContainerPreStopHandler is the hook to run before the container is stopped, as JSON.
	ContainerPreStopHandler = "io.kubernetes.container.preStopHandler"
	// ContainerPorts are the ports of the container, as JSON.
	ContainerPorts = "io.kubernetes.container.ports"
	// PodDeletionGracePeriod and PodTerminationGracePeriod are the pod's grace periods, in seconds.
	PodDeletionGracePeriod    = "io.kubernetes.pod.deletionGracePeriod"
	PodTerminationGracePeriod = "io.kubernetes.pod.terminationGracePeriod"
)
