// Package signal names the eviction signals, and what each is about.
//
// Names, resources and conditions are the kubelet's (pkg/kubelet/eviction).
package signal

import v1 "k8s.io/api/core/v1"

// Signal is what a threshold watches.
type Signal string

// The signals of the kubelet.
const (
	// MemoryAvailable is the node's memory without its working set, in bytes.
	MemoryAvailable Signal = "memory.available"
	// AllocatableMemoryAvailable is the limit of the cgroup of all pods without its working set, in bytes.
	AllocatableMemoryAvailable Signal = "allocatableMemory.available"
	// NodeFsAvailable and NodeFsInodesFree are of the filesystem of --root-dir.
	NodeFsAvailable  Signal = "nodefs.available"
	NodeFsInodesFree Signal = "nodefs.inodesFree"
	// ImageFsAvailable and ImageFsInodesFree are of the filesystem of the runtime's images.
	ImageFsAvailable  Signal = "imagefs.available"
	ImageFsInodesFree Signal = "imagefs.inodesFree"
	// ContainerFsAvailable and ContainerFsInodesFree are of the filesystem of the containers' writable layers.
	ContainerFsAvailable  Signal = "containerfs.available"
	ContainerFsInodesFree Signal = "containerfs.inodesFree"
	// PIDAvailable is the number of processes that can still be started.
	PIDAvailable Signal = "pid.available"
)

// Resources that are the eviction's own, beside memory and ephemeral-storage.
const (
	Inodes v1.ResourceName = "inodes"
	PIDs   v1.ResourceName = "pids"
)

// All returns the signals.
func All() []Signal {
	return []Signal{
		MemoryAvailable, AllocatableMemoryAvailable, NodeFsAvailable, NodeFsInodesFree, ImageFsAvailable,
		ImageFsInodesFree, ContainerFsAvailable, ContainerFsInodesFree, PIDAvailable,
	}
}

// Resource is what the node is low on when a threshold of the signal is met; empty for what is no signal.
func (s Signal) Resource() v1.ResourceName {
	switch s {
	case MemoryAvailable, AllocatableMemoryAvailable:
		return v1.ResourceMemory
	case NodeFsAvailable, ImageFsAvailable, ContainerFsAvailable:
		return v1.ResourceEphemeralStorage
	case NodeFsInodesFree, ImageFsInodesFree, ContainerFsInodesFree:
		return Inodes
	case PIDAvailable:
		return PIDs
	}
	return ""
}

// Condition is the node's condition that a met threshold brings; empty for what is no signal.
func (s Signal) Condition() v1.NodeConditionType {
	switch s.Resource() {
	case v1.ResourceMemory:
		return v1.NodeMemoryPressure
	case v1.ResourceEphemeralStorage, Inodes:
		return v1.NodeDiskPressure
	case PIDs:
		return v1.NodePIDPressure
	}
	return ""
}

// Conditions are the pressure conditions, in the order in which they are reported.
func Conditions() []v1.NodeConditionType {
	return []v1.NodeConditionType{v1.NodeMemoryPressure, v1.NodeDiskPressure, v1.NodePIDPressure}
}
