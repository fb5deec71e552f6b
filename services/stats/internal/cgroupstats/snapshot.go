// Package cgroupstats takes the figures of the node, its cgroups and its processes.
//
// It reads cgroups through cAdvisor's library, by its reader of one cgroup (container/libcontainer) and its reader of
// a cgroup's limits (container/common). cAdvisor's manager is not used: it opens the runtime's socket to learn the
// containers' labels, runs a goroutine and a timer for each cgroup, reads the sockets of each process, which needs the
// right to trace it, and keeps two minutes of samples of each. Here one pass reads all cgroups on request, and a cgroup
// is forgotten when it is gone.
package cgroupstats

import (
	"time"

	"github.com/google/cadvisor/lib/model"

	"github.com/microlet/microlet/services/internal/nodepods"
)

// Kind says what a cgroup is.
type Kind int

// The kinds of cgroups.
const (
	// Root is the root of the hierarchy: the whole machine.
	Root Kind = iota
	// Slice holds others: the cgroup of all pods and of a QoS class, and the system's that are configured.
	Slice
	// PodKind is the cgroup of one pod.
	PodKind
	// Container is a container's or a sandbox's.
	Container
)

// Cgroup is a cgroup and its figures at one time.
type Cgroup struct {
	// Name is its path below the root of the hierarchy, such as /kubepods/burstable/pod<uid>.
	Name string
	Kind Kind
	// PodUID is set for PodKind and Container.
	PodUID string
	// ID is the container's or sandbox's, set for Container.
	ID string
	// Pod is nil unless podsync has published it.
	Pod *nodepods.Pod
	// Container is nil for a sandbox, and unless podsync has published it.
	Container *nodepods.Container
	Spec      model.ContainerSpec
	Stats     *model.ContainerStats
	// UsageNanoCores is the use of processors since the sample before; nil for the first one of a cgroup.
	UsageNanoCores *uint64
}

// IsSandbox reports whether the cgroup is that of a pod's sandbox.
func (c *Cgroup) IsSandbox() bool {
	return c.Pod != nil && c.Kind == Container && c.ID == c.Pod.SandboxID
}

// Tasks are the threads of the node.
type Tasks struct {
	Time time.Time
	// Limit is the lower of kernel.pid_max and kernel.threads-max; nil if neither can be read.
	Limit *int64
	// Running is how many there are.
	Running *int64
}

// Snapshot is what was measured in one pass. It is shared: do not change it.
type Snapshot struct {
	ReadAt time.Time
	// Machine is what the node is made of, some minutes old at most.
	Machine *model.MachineInfo
	// Boot is when the node started.
	Boot time.Time
	// Cgroups are all that were read, by name. The root is the first of them.
	Cgroups []*Cgroup
	// System are the cgroups of the system's parts, as the Summary API names them.
	System map[string]*Cgroup
	// Tasks are those of the node.
	Tasks Tasks
	// PSI says that the kernel measures how long tasks wait for resources.
	PSI bool
}

// Root is the cgroup of the whole machine; nil if it could not be read.
func (s *Snapshot) Root() *Cgroup {
	if len(s.Cgroups) > 0 && s.Cgroups[0].Kind == Root {
		return s.Cgroups[0]
	}
	return nil
}
