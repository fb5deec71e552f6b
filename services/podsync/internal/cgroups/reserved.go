package cgroups

import (
	"fmt"
	"strconv"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/microlet/microlet/services/internal/podcgroup"
)

// Reserved is a cgroup of system daemons, which another program creates, and its limits.
type Reserved struct {
	// Cgroup is systemReservedCgroup or kubeReservedCgroup: a path below the mount point, or a slice with the driver
	// systemd.
	Cgroup string
	// Limits are in CPU (as shares, no quota), memory and ResourcePIDs. The cgroup gets no huge pages.
	Limits v1.ResourceList
	// CompressibleOnly limits CPU alone.
	CompressibleOnly bool
	// Protect keeps the memory for the cgroup too (memory.min, with cgroup v2): the feature gate MemoryQoS (KEP-2570).
	Protect bool
}

// LimitReserved sets the limits of an existing cgroup. The error says what is missing of one that is not there with
// every controller.
func (m *Manager) LimitReserved(r Reserved) error {
	n := podcgroup.ParseRoot(r.Cgroup, m.systemd)
	if len(n) == 0 {
		return fmt.Errorf("%q is the root of the hierarchy, which cannot be limited: name a cgroup below it", r.Cgroup)
	}
	path, err := m.path(n)
	if err != nil {
		return err
	}
	missing, err := m.missing(path)
	if err != nil {
		return err
	}
	if len(missing) > 0 {
		return fmt.Errorf("cgroup %s does not have %s: create it before podsync starts", path, strings.Join(missing, ", "))
	}
	return m.set(n, reservedResources(r))
}

func reservedResources(r Reserved) resources {
	list := r.Limits
	if r.CompressibleOnly {
		list = v1.ResourceList{}
		if q, ok := r.Limits[v1.ResourceCPU]; ok {
			list[v1.ResourceCPU] = q
		}
	}
	limits := limitsOf(list)
	if r.Protect && limits.memory != nil {
		limits.unified = map[string]string{"memory.min": strconv.FormatInt(*limits.memory, 10)}
	}
	return limits
}
