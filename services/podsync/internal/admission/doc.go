// Package admission decides whether this node may start a pod.
//
// It checks one pod at a time, in the order of creation, against the Node and all pods that were admitted and have
// not ended. So a restart decides as the previous process did. The output is a Result with the kubelet's reason and
// message. A running pod is never rejected. A pod waits only for pods that are being preempted, and only if it does
// not fit before they have ended.
package admission
