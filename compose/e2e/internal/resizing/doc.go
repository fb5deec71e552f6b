// Package resizing says what the resources of a pod must have come to after an in-place resize: in the kubelet's state
// files, in the pod's status, in the runtime and in the cgroups.
package resizing
