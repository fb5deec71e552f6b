package nodecheck

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/microlet/microlet/services/internal/kubeletconfig"
	"github.com/microlet/microlet/services/internal/nodeinfo"
	"github.com/microlet/microlet/services/internal/podcgroup"
)

// reservations checks that the machine has what is reserved, and the cgroups that a reservation is enforced on. podsync
// does not start without.
func (h Host) reservations(r *report, k *kubeletconfig.Config) {
	c := &k.Kubelet
	if !h.refuses("systemReserved", "kubeReserved", "evictionHard") {
		err := nodeinfo.Check(h.capacity(), nodeinfo.Reservation{
			System: c.SystemReserved, Kube: c.KubeReserved, EvictionHard: c.EvictionHard,
			IgnoreEviction: k.Node.AllocatableIgnoreEviction,
		})
		for _, one := range kubeletconfig.Flatten(err) {
			detail, remedy, found := strings.Cut(one.Error(), ": ")
			if !found {
				remedy = "correct it"
			}
			r.failed("reservations", detail, remedy)
		}
	}
	for _, reserved := range []struct{ field, cgroup, level string }{
		{"systemReservedCgroup", c.SystemReservedCgroup, "system-reserved"},
		{"kubeReservedCgroup", c.KubeReservedCgroup, "kube-reserved"},
	} {
		enforced := slices.ContainsFunc(c.EnforceNodeAllocatable, func(level string) bool {
			return level == reserved.level || level == reserved.level+"-compressible"
		})
		if enforced && reserved.cgroup != "" && !h.hasCgroup(reserved.cgroup) {
			r.failed("cgroup", reserved.field+" is "+reserved.cgroup+", and there is no such cgroup",
				"create it before the start, such as by a slice that the unit of microlet requires, or remove "+
					reserved.level+" from enforceNodeAllocatable")
		}
	}
}

// capacity is what is known of the machine's without running the agent.
func (h Host) capacity() v1.ResourceList {
	all := v1.ResourceList{}
	cpus := 0
	for _, line := range h.lines("proc/cpuinfo") {
		if strings.HasPrefix(line, "processor") {
			cpus++
		}
	}
	if cpus > 0 {
		all[v1.ResourceCPU] = *resource.NewQuantity(int64(cpus), resource.DecimalSI)
	}
	for _, line := range h.lines("proc/meminfo") {
		fields := strings.Fields(line)
		if len(fields) < 2 || fields[0] != "MemTotal:" {
			continue
		}
		if kib, err := strconv.ParseInt(fields[1], 10, 64); err == nil {
			all[v1.ResourceMemory] = *resource.NewQuantity(kib<<10, resource.BinarySI)
		}
	}
	return all
}

// hasCgroup reports whether a cgroup is there under the name that either driver gives it: which one the runtime has may
// not be known.
func (h Host) hasCgroup(name string) bool {
	for _, systemd := range []bool{false, true} {
		path, err := podcgroup.ParseRoot(name, systemd).Path(systemd)
		if err != nil {
			continue
		}
		for _, top := range []string{"sys/fs/cgroup", "sys/fs/cgroup/cpu"} { // the latter with version 1
			if _, err := os.Stat(h.path(filepath.Join(top, path))); !errors.Is(err, os.ErrNotExist) {
				return true
			}
		}
	}
	return false
}
