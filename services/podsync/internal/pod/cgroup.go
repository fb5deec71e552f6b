package pod

import "math"

// Unlimited is a limit of CgroupLimits that does not exist.
const Unlimited = math.MaxInt64

// CgroupLimits are CPU and memory of a pod's cgroup. The kernel rounds some of them; two that it would make equal are
// equal here.
type CgroupLimits struct {
	// MemoryLimit and MemoryHigh are in bytes; Unlimited is none. cgroup v1 has no MemoryHigh.
	MemoryLimit, MemoryHigh int64
	// MemoryProtected is what the kernel keeps for the pod, in bytes; 0 is none, as with cgroup v1.
	MemoryProtected int64
	// CPUQuota is in microseconds a period; Unlimited is none.
	CPUQuota, CPUPeriod int64
	CPUShares           uint64
}

// Cgroup is a pod's cgroup at one moment.
type Cgroup struct {
	// Wants are the limits that the granted resources of the pod make.
	Has, Wants CgroupLimits
	// Memory is what the pod uses, in bytes, and Containers what its containers use, by ID. A container whose cgroup is
	// not in the pod's is not in it.
	Memory     int64
	Containers map[string]int64
}
