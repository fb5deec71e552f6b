// Package cleanup runs the periodic work that belongs to no single pod.
//
// It removes what no pod needs any more, rotates container logs, keeps the shares of the QoS cgroups, keeps the
// kubelet's chains in the packet filter of the host, and empties the root cgroup. None of this blocks a pod, and each
// part continues while another one hangs.
package cleanup

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/record"

	"github.com/microlet/microlet/services/internal/kubeletconfig"
	"github.com/microlet/microlet/services/internal/logkey"
	"github.com/microlet/microlet/services/internal/service"
	"github.com/microlet/microlet/services/internal/tracing"
	"github.com/microlet/microlet/services/podsync/internal/cleanup/internal/firewall"
	"github.com/microlet/microlet/services/podsync/internal/cleanup/internal/leftovers"
	"github.com/microlet/microlet/services/podsync/internal/cleanup/internal/predecessor"
	"github.com/microlet/microlet/services/podsync/internal/cleanup/internal/rotate"
	"github.com/microlet/microlet/services/podsync/internal/cleanup/internal/systemcgroup"
	"github.com/microlet/microlet/services/podsync/internal/cri"
	"github.com/microlet/microlet/services/podsync/internal/logs"
	"github.com/microlet/microlet/services/podsync/internal/pod"
)

// reasonContainerGCFailed is the kubelet's event for dead containers that cannot be collected.
const reasonContainerGCFailed = "ContainerGCFailed"

// Workers are those of the node's pods; see package pods.
type Workers interface {
	leftovers.Pods
	Pods() []*v1.Pod
	// Orphans receives when something runs, or may run, of which no worker knows.
	Orphans() <-chan struct{}
	// Synced is closed once every source has been heard.
	Synced() <-chan struct{}
}

// Cgroups are those of pods and of QoS classes.
type Cgroups interface {
	leftovers.Cgroups
	cgroups
}

// NewRemover returns what removes everything that the runtime has of a pod.
func NewRemover(runtime leftovers.Runtime) leftovers.Remover {
	return leftovers.Remover{Runtime: runtime}
}

// NewPredecessors returns what ends what runs of static pods under the UIDs of earlier manifests.
func NewPredecessors(runtime predecessor.Runtime, workers predecessor.Workers, log *slog.Logger) *predecessor.Ender {
	return predecessor.New(runtime, workers, log)
}

// Options of a Housekeeping.
type Options struct {
	Kubelet *kubeletconfig.Config
	Runtime *cri.Runtime
	Volumes leftovers.Volumes
	Cgroups Cgroups
	Logs    logs.Folders
	// PreStop runs the hook of a running container of a pod without a worker.
	PreStop func(ctx context.Context, state *pod.State, c *pod.Container)
	Tokens  Tokens
	Workers Workers
	Sources Sources
	// Waiting is given the sources that are awaited.
	Waiting func(status string)
	// Node is what events about the Node refer to.
	Node    *v1.ObjectReference
	Events  record.EventRecorder
	Tracer  *tracing.Tracer
	Log     *slog.Logger
	Metrics prometheus.Registerer
}

// Housekeeping is podsync's.
type Housekeeping struct {
	cleanup  *leftovers.Cleanup
	rotator  *rotate.Rotator
	firewall *firewall.Firewall  // nil without makeIPTablesUtilChains
	system   *systemcgroup.Mover // nil without systemCgroups
	upkeep   upkeep
	o        Options
}

// New returns what does nothing before Start.
func New(o Options) (*Housekeeping, error) {
	k, h := o.Kubelet, &Housekeeping{o: o, cleanup: o.newCleanup()}
	var err error
	h.rotator, err = rotate.New(rotate.Options{
		Runtime:  o.Runtime.Runtime,
		MaxSize:  k.Kubelet.ContainerLogMaxSize,
		MaxFiles: int(*k.Kubelet.ContainerLogMaxFiles),
		Workers:  int(*k.Kubelet.ContainerLogMaxWorkers),
		Interval: k.Kubelet.ContainerLogMonitorInterval.Duration,
		Log:      o.Log,
		Metrics:  o.Metrics,
	})
	if err != nil {
		return nil, err
	}
	if *k.Kubelet.MakeIPTablesUtilChains {
		h.firewall, err = firewall.New(firewall.Options{Log: o.Log, Metrics: o.Metrics})
		if err != nil {
			return nil, err
		}
	}
	if name := k.Kubelet.SystemCgroups; name != "" {
		h.system, err = systemcgroup.New(name, o.Log)
	}
	h.upkeep = upkeep{
		driver:  o.Runtime.Driver,
		tokens:  o.Tokens,
		sources: o.Sources,
		cgroups: o.Cgroups,
		pods:    o.Workers.Pods,
		waiting: o.Waiting,
		log:     o.Log,
	}
	return h, err
}

func (o *Options) newCleanup() *leftovers.Cleanup {
	node := &o.Kubelet.Node
	return leftovers.New(leftovers.Options{
		Runtime: o.Runtime.LowPriority(),
		Volumes: o.Volumes,
		Cgroups: o.Cgroups,
		Logs:    o.Logs,
		Pods:    o.Workers,
		Orphans: o.Workers.Orphans(),
		PreStop: o.PreStop,
		Policy: leftovers.Policy{
			MinAge:          node.MinimumContainerTTL.Duration,
			MaxPerContainer: int(node.MaxDeadContainersPerContainer),
			MaxContainers:   int(node.MaxDeadContainers),
		},
		Failed:  func(err error) { o.Events.Event(o.Node, v1.EventTypeWarning, reasonContainerGCFailed, err.Error()) },
		Tracer:  o.Tracer,
		Log:     o.Log,
		Metrics: leftovers.NewMetrics(o.Metrics),
	})
}

// Start has s keep house.
func (h *Housekeeping) Start(s *service.Service) {
	s.Go("clean-up", func(ctx context.Context) error { return h.cleanup.Run(ctx, h.o.Workers.Synced()) })
	s.Go("container logs", h.rotateLogs)
	s.Go("upkeep", h.upkeep.run)
	if h.firewall != nil {
		s.Go("firewall", h.firewall.Run)
	}
	if h.system != nil {
		s.Go("system cgroup", h.system.Run)
	}
}

// RemoveDead removes the dead containers of pods that have ended, and says how many; see cleanup.Cleanup.
func (h *Housekeeping) RemoveDead(ctx context.Context) (int, error) { return h.cleanup.RemoveDead(ctx) }

// rotateLogs runs beside everything else: neither a log nor a runtime that hangs holds up a pod.
func (h *Housekeeping) rotateLogs(ctx context.Context) error {
	if err := h.o.Logs.Adopt(); err != nil {
		h.o.Log.Warn("log folders not all brought in line", logkey.Err, fmt.Errorf("group %d: %w", h.o.Logs.Group, err))
	}
	return h.rotator.Run(ctx)
}
