package status

import (
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/microlet/microlet/services/podsync/internal/pod"
)

const (
	// minShares and minMilliCPULimit are the least that cgroups are given. A value at or below them
	// is reported as it was asked for, not as it was rounded up.
	minShares        = 2
	minMilliCPULimit = 10
)

// resources are those that the container has: those of its spec, corrected by what the runtime reports of a running one
// (KEP-1287).
func resources(spec *v1.Container, c *pod.Container) *v1.ResourceRequirements {
	r := spec.Resources.DeepCopy()
	linux := c.Resources.GetLinux()
	if !c.Running() || linux == nil {
		return r
	}
	if r.Limits != nil {
		if linux.CpuPeriod > 0 && linux.CpuQuota > 0 {
			have, asked := linux.CpuQuota*1000/linux.CpuPeriod, r.Limits.Cpu().MilliValue()
			if have != asked && (have > minMilliCPULimit || asked > minMilliCPULimit) {
				r.Limits[v1.ResourceCPU] = *resource.NewMilliQuantity(have, resource.DecimalSI)
			}
		}
		if limit := linux.MemoryLimitInBytes; limit > 0 && r.Limits.Memory().Value() != limit {
			r.Limits[v1.ResourceMemory] = *resource.NewQuantity(limit, resource.BinarySI)
		}
	}
	if r.Requests != nil && linux.CpuShares >= minShares {
		// Shares are coarser than millicores: only what no rounding explains is a difference.
		asked := r.Requests.Cpu().MilliValue()
		have := (linux.CpuShares*1000 + 1023) / 1024
		if max(asked*1024/1000, minShares) != linux.CpuShares && (have > minShares || asked > minShares) {
			r.Requests[v1.ResourceCPU] = *resource.NewMilliQuantity(have, resource.DecimalSI)
		}
	}
	return r
}

// bareID cuts the runtime's name off a container id of the API.
func bareID(id string) string {
	if _, bare, found := strings.Cut(id, "://"); found {
		return bare
	}
	return id
}
