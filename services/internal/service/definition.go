package service

import (
	"context"

	"github.com/spf13/pflag"

	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/services/internal/kubeletconfig"
)

// Definition is what a service is to those that start it: its own program, the one binary and the supervisor. Each
// service has one.
type Definition struct {
	Role  role.Role
	Short string
	// NeedsKubelet says that Run needs the kubelet's configuration; it gets nil otherwise.
	NeedsKubelet bool
	// KubeletFields are those of the configuration that Run reads, as kubeletconfig names them; nil is all.
	KubeletFields []string
	// Credentials checks what the kubeconfigs of the configuration contain; nil is for a service that has none.
	Credentials kubeletconfig.Credentials
	// Bind adds the service's own flags; Run goes by what they were set to. Nil adds none.
	Bind func(fs *pflag.FlagSet)
	Run  func(ctx context.Context, s Config, k *kubeletconfig.Config) error
	// Validate says what Run would refuse: field, value, remedy.
	Validate func(s Config, k *kubeletconfig.Config) error
	// Nice is how far the service gives way to the others where there is too little processor for all.
	Nice int
	// MemoryLimit returns what a process of the service may take, in bytes, as its flags say; 0 is no limit. The
	// supervisor enforces it by a cgroup of the process's own; in the single placement there is none. Nil is no limit.
	MemoryLimit func() int64
	// HeapTarget is how much memory Go's runtime collects garbage to stay within, in bytes. It limits nothing.
	// Default: nine tenths of MemoryLimit.
	HeapTarget int64
	// PrivateNetwork returns whether a process of the service has a network of its own without connections, as its flags
	// say: the service speaks over unix sockets alone. Nil leaves it the node's.
	PrivateNetwork func() bool
	// OOMScoreAdj is the process's adjustment of the OOM killer's score. Default: the agent's, which spares it.
	OOMScoreAdj int
	// StateDir returns a folder for what must outlive a reboot, as its flags say. The supervisor makes it, for the
	// service alone. Nil is none.
	StateDir func() string
	// Folders returns those of root's that the service writes to beside its own, as its flags and the kubelet's
	// configuration say. The supervisor makes them. Nil is none.
	Folders func(k *kubeletconfig.Config) []string
	// Hidden returns folders and files of the host that the service has no use for and its capabilities would open. The
	// supervisor hides them from it, unless what it needs is below. Nil is none.
	Hidden func(k *kubeletconfig.Config) []string
	// OnDemand says when a process of the service is started; nil is always.
	OnDemand *OnDemand
	// KeptFiles is how many files the supervisor keeps open for the service while it restarts; see Service.Kept.
	KeptFiles int
	// StopStage orders the stop: lower ones stop first.
	StopStage int
}

// OnDemand says when a service has something to do. The supervisor, or a socket unit, listens on its gRPC socket and on
// those named here, and starts it with the first connection to one of them. Once started it stays. In the single
// placement it runs always.
type OnDemand struct {
	// Sockets returns those beside the gRPC socket, as the service's flags and the kubelet's configuration say.
	Sockets func(k *kubeletconfig.Config) []Socket
	// Needed reports whether the service has something to do before anything connects. The supervisor asks it as root.
	Needed func(k *kubeletconfig.Config) bool
}

// Define completes the definition of a service from its configuration and its Run. config returns the configuration
// with the flags that Bind has set.
func Define[C any, P interface {
	*C
	Validate() error
}](d Definition, config func(Config, *kubeletconfig.Config) C, run func(context.Context, C) error) Definition {
	d.Run = func(ctx context.Context, s Config, k *kubeletconfig.Config) error { return run(ctx, config(s, k)) }
	d.Validate = func(s Config, k *kubeletconfig.Config) error {
		c := config(s, k)
		return P(&c).Validate()
	}
	return d
}

// Expendable is the OOMScoreAdj of a service if others can make its memory grow, and its end harms no pod. The OOM
// killer takes it as it takes a container that asks for no memory: after those that use more than they have asked for,
// and before those that do not.
const Expendable = 999

// Always is a PrivateNetwork that no flag changes.
func Always() bool { return true }

// Bytes returns a MemoryLimit that no flag sets.
func Bytes(limit int64) func() int64 { return func() int64 { return limit } }

// Memory is MemoryLimit, or 0.
func (d Definition) Memory() int64 {
	if d.MemoryLimit == nil {
		return 0
	}
	return d.MemoryLimit()
}

// heapTarget is HeapTarget, or its default; 0 is none.
func (d Definition) heapTarget() int64 {
	if d.HeapTarget != 0 {
		return d.HeapTarget
	}
	return d.Memory() / 10 * 9
}
