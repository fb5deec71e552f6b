package evictor

import (
	"context"
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	statsv1 "github.com/microlet/microlet/proto/microlet/stats/v1"
	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/services/evictor/internal/manager"
	"github.com/microlet/microlet/services/evictor/internal/measurement"
	"github.com/microlet/microlet/services/evictor/internal/node"
	"github.com/microlet/microlet/services/evictor/internal/oomwatch"
	"github.com/microlet/microlet/services/evictor/internal/pods"
	"github.com/microlet/microlet/services/evictor/internal/reading"
	"github.com/microlet/microlet/services/evictor/internal/report"
	"github.com/microlet/microlet/services/evictor/internal/threshold"
	"github.com/microlet/microlet/services/evictor/internal/usage"
	"github.com/microlet/microlet/services/internal/diskusage"
	"github.com/microlet/microlet/services/internal/eventref"
	"github.com/microlet/microlet/services/internal/formername"
	"github.com/microlet/microlet/services/internal/logkey"
	"github.com/microlet/microlet/services/internal/nodepods"
	"github.com/microlet/microlet/services/internal/outbox"
	"github.com/microlet/microlet/services/internal/podfolders"
	"github.com/microlet/microlet/services/internal/service"
)

// busPatience is how long the start waits for the bus: what an earlier evictor has evicted stands there.
const busPatience = 5 * time.Second

// Run runs evictor until ctx ends. An eviction that it has asked for goes on.
func Run(ctx context.Context, cfg Config) error {
	if err := cfg.Validate(); err != nil {
		return err
	}
	thresholds, err := cfg.thresholds()
	if err != nil {
		return err
	}
	s, err := service.New(cfg.Service, role.Evictor)
	if err != nil {
		return err
	}
	peers, err := dial(ctx, s)
	if err != nil {
		return err
	}
	defer peers.close()
	events := outbox.NewRecorder(s.Bus, cfg.Service.NodeName, s.Log)
	s.Go("events", events.Run)
	oom := &oomwatch.Watcher{Log: s.Log, Killed: killed(s, events, eventref.Node(cfg.Service.NodeName))}
	s.Go("OOM kills", oom.Run)
	entry := report.New(s.Bus)
	options := cfg.manager(s, peers, thresholds)
	options.Node = node.New(formername.Conn(peers.podsync), peers.imagegc, events, eventref.Node(cfg.Service.NodeName))
	options.Report = entry.Put
	measurer := measurement.New(podfolders.Layout{
		Root: cfg.Kubelet.Node.RootDir, Logs: cfg.Kubelet.Kubelet.PodLogsDir,
	}, runtimeapi.NewRuntimeServiceClient(peers.cri), diskusage.NewWalker(s.Log).Walk)
	options.Measure = measurer
	s.Go("measurements", measurer.Run)
	s.Go("manager", func(ctx context.Context) error {
		before := entry.Before(ctx, busPatience, s.Pulse.Turn)
		s.Ready(fmt.Sprintf("watching %d thresholds", len(thresholds)))
		return manager.New(options, before).Run(ctx)
	})
	return s.Run(ctx)
}

// killed returns what reports an OOM kill: an event if the node had no memory left.
func killed(s *service.Service, events outbox.Events, ref *v1.ObjectReference) func(oomwatch.Kill) {
	return func(kill oomwatch.Kill) {
		s.Log.Info("the kernel has killed a process for its memory", "process", kill.Process, logkey.PID, kill.PID,
			"systemOOM", kill.System)
		if kill.System {
			events.Event(ref, v1.EventTypeWarning, "SystemOOM", kill.Message())
		}
	}
}

// manager has what the node measures and decides; the caller adds Node and Report.
func (c *Config) manager(s *service.Service, p *peers, thresholds []threshold.Threshold) manager.Options {
	k := c.Kubelet
	memory := reading.Find()
	memory.HugePages = k.FeatureEnabled("HugepageAwareEviction")
	tree := &usage.Tree{Mount: memory.Mount, Root: k.Kubelet.CgroupRoot, Memory: memory}
	return manager.Options{
		Thresholds: thresholds, Transition: k.Kubelet.EvictionPressureTransitionPeriod.Duration,
		MaxPodGrace: int64(k.Kubelet.EvictionMaxPodGracePeriod), Period: c.period(), LocalStorage: c.localStorage(),
		Reader: reading.New(reading.Options{
			Memory: memory, Processes: reading.Processes{Proc: "/proc"}, PodsCgroup: tree.AllPods,
			RootDir: k.Node.RootDir, Filesystems: node.Filesystems(p.cri),
		}),
		Pods:   pods.New(nodepods.Watch(s.Bus, s.Log, nil)),
		Usage:  &usage.Usage{Stats: statsv1.NewStatsServiceClient(p.stats), Cgroups: tree},
		Turned: s.Pulse.Turn, Metrics: manager.NewMetrics(s.Metrics), Log: s.Log,
	}
}
