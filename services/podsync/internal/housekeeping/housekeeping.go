// Package housekeeping runs the periodic work that belongs to no single pod.
//
// It removes what no pod needs any more, rotates container logs, keeps the shares of the QoS cgroups, keeps the
// kubelet's chains in the packet filter of the host, and empties the root cgroup. None of this blocks a pod, and each
// part continues while another one hangs.
package housekeeping

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
	"github.com/microlet/microlet/services/podsync/internal/cgroups/system"
	"github.com/microlet/microlet/services/podsync/internal/cleanup"
	"github.com/microlet/microlet/services/podsync/internal/cri"
	"github.com/microlet/microlet/services/podsync/internal/firewall"
	"github.com/microlet/microlet/services/podsync/internal/logs/rotate"
	"github.com/microlet/microlet/services/podsync/internal/podsetup"
	"github.com/microlet/microlet/services/podsync/internal/worker"
)

// reasonContainerGCFailed is the kubelet's event for dead containers that cannot be collected.
const reasonContainerGCFailed = "ContainerGCFailed"

// Options of a Housekeeping.
type Options struct {
	Kubelet   *kubeletconfig.Config
	Runtime   *cri.Runtime
	Resources *podsetup.Resources
	Tokens    Tokens
	Workers   *worker.Workers
	Sources   Sources
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
	cleanup  *cleanup.Cleanup
	rotator  *rotate.Rotator
	firewall *firewall.Firewall // nil without makeIPTablesUtilChains
	system   *system.Mover      // nil without systemCgroups
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
		h.system, err = system.New(name, o.Log)
	}
	h.upkeep = upkeep{
		driver:  o.Runtime.Driver,
		tokens:  o.Tokens,
		sources: o.Sources,
		cgroups: o.Resources.Cgroups,
		pods:    o.Workers.Pods,
		waiting: o.Waiting,
		log:     o.Log,
	}
	return h, err
}

func (o *Options) newCleanup() *cleanup.Cleanup {
	node := &o.Kubelet.Node
	return cleanup.New(cleanup.Options{
		Runtime: o.Runtime.LowPriority(),
		Volumes: o.Resources.Volumes,
		Cgroups: o.Resources.Cgroups,
		Logs:    o.Resources.Logs,
		Pods:    o.Workers,
		Orphans: o.Workers.Orphans(),
		PreStop: o.Resources.Hooks.Orphan,
		Policy: cleanup.Policy{
			MinAge:          node.MinimumContainerTTL.Duration,
			MaxPerContainer: int(node.MaxDeadContainersPerContainer),
			MaxContainers:   int(node.MaxDeadContainers),
		},
		Failed:  func(err error) { o.Events.Event(o.Node, v1.EventTypeWarning, reasonContainerGCFailed, err.Error()) },
		Tracer:  o.Tracer,
		Log:     o.Log,
		Metrics: cleanup.NewMetrics(o.Metrics),
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
	logs := h.o.Resources.Logs
	if err := logs.Adopt(); err != nil {
		h.o.Log.Warn("log folders not all brought in line", logkey.Err, fmt.Errorf("group %d: %w", logs.Group, err))
	}
	return h.rotator.Run(ctx)
}
