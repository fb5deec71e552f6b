package podsync

import (
	"context"
	"sync"

	"github.com/microlet/microlet/services/internal/kubeletconfig"
	"github.com/microlet/microlet/services/internal/pressure"
	"github.com/microlet/microlet/services/internal/service"
	"github.com/microlet/microlet/services/podsync/internal/admission"
	"github.com/microlet/microlet/services/podsync/internal/allocation"
	"github.com/microlet/microlet/services/podsync/internal/api"
	"github.com/microlet/microlet/services/podsync/internal/cleanup"
	"github.com/microlet/microlet/services/podsync/internal/eviction"
	"github.com/microlet/microlet/services/podsync/internal/pods"
	"github.com/microlet/microlet/services/podsync/internal/shutdown"
	"github.com/microlet/microlet/services/podsync/internal/sources"
	"github.com/microlet/microlet/services/podsync/internal/status"
)

// podWork is what podsync does for pods, from their sources to what is left of them.
type podWork struct {
	reports      *status.Reports
	shutdown     *shutdown.Shutdown // nil: the node ends at once
	sources      *sources.Sources
	resources    *resources
	admission    *admission.Admission
	allocation   *allocation.Allocation
	dispatcher   *pods.Dispatcher
	housekeeping *cleanup.Housekeeping
	// gated are the pod fields that are supported because their feature gate is on.
	gated []string
}

func newPodWork(ctx context.Context, s *service.Service, cfg *Config, env *environment) (*podWork, error) {
	k, p, has := cfg.Kubelet, &podWork{}, env.node.Capacity
	var err error
	p.reports, err = status.New(status.Options{
		NodeName: env.name, Kubelet: k, Client: env.client, Bus: s.Bus, Workers: env.workers,
		Gateway: env.runtime.Containers,
		Machine: status.Machine{Capacity: has.Total, Allocatable: has.Allocatable, SystemUUID: has.SystemUUID},
		Events:  env.events, Tracer: s.Tracer, Log: s.Log, Metrics: s.Metrics,
	})
	if err != nil {
		return nil, err
	}
	p.sources, err = sources.New(sources.Options{
		NodeName: env.name, Kubelet: k, Client: env.client, Mirrors: p.reports.Mirrors, Events: env.events, Log: s.Log,
		Metrics: s.Metrics,
	})
	if err != nil {
		return nil, err
	}
	helpers := admission.NewHelpers(cfg.HelperNamespace, cfg.Service.RuntimeDir)
	p.resources, err = newResources(ctx, s, &resourceOptions{
		environment: env, config: cfg, runtimeDir: cfg.Service.RuntimeDir, helpers: helpers, reports: p.reports,
	})
	if err != nil {
		return nil, err
	}
	if err := p.admit(s, cfg, env, helpers); err != nil {
		return nil, err
	}
	p.dispatch(s, cfg, env)
	r := p.resources
	p.housekeeping, err = cleanup.New(cleanup.Options{
		Kubelet: k, Runtime: env.runtime, Volumes: r.volumes.Manager, Cgroups: r.cgroups, Logs: r.logs, PreStop: r.orphan,
		Tokens: env.cluster.Tokens, Workers: env.workers, Sources: p.dispatcher, Waiting: s.Waiting,
		Node: env.node.Reference, Events: env.events, Tracer: s.Tracer, Log: s.Log, Metrics: s.Metrics,
	})
	return p, err
}

// admit decides what may run here and with which resources. A shutdown of the machine ends that.
func (p *podWork) admit(s *service.Service, cfg *Config, env *environment, helpers admission.Helpers) (err error) {
	o := admission.Options{
		Kubelet: cfg.Kubelet, Helpers: helpers, HelperRecords: cfg.Service.HelpersDir(), Nodes: env.node.Object,
		Extended: env.grants.Extended, Pressure: pressure.Watch(s.Bus).Under, Runtime: env.runtime,
		Evictor: eviction.NewPreemptor(env.workers, env.events), Swaps: p.resources.config.Swaps,
		Log: s.Log, Metrics: s.Metrics,
	}
	p.shutdown = shutdown.New(shutdown.Options{
		Kubelet: cfg.Kubelet, Service: s, Pods: env.workers, Delivered: p.reports.Statuses.Delivered,
		Node: env.node.Object.Node, Reference: env.node.Reference, Events: env.events, BootID: env.node.Capacity.BootID,
	})
	if p.shutdown != nil {
		o.Shutdown = p.shutdown.Manager
	}
	if p.admission, err = admission.New(o); err != nil {
		return err
	}
	p.allocation = allocation.New(allocation.Options{
		RootDir: cfg.Kubelet.Node.RootDir, Admission: p.admission, Synced: env.workers.Synced(),
		Changed: env.workers.Granted, Node: env.node.Reference, Events: env.events, Log: s.Log, Metrics: s.Metrics,
	})
	return nil
}

// dispatch gives pods to workers.
func (p *podWork) dispatch(s *service.Service, cfg *Config, env *environment) {
	settings := limits(cfg.Kubelet)
	p.gated = settings.Gated
	p.dispatcher = pods.NewDispatcher(env.workers, pods.Deps{
		RuntimeDeps: pods.RuntimeDeps{
			Runtime: env.runtime.Runtime, Remover: cleanup.NewRemover(env.runtime.LowPriority()),
			RuntimeState: env.runtime.State, RuntimeClasses: env.cluster.RuntimeClasses,
			Predecessors: cleanup.NewPredecessors(env.runtime.Runtime, env.workers, s.Log),
		},
		Resources: p.resources.Resources,
		Admissions: pods.Admissions{
			Admission: p.admission, ContainerAdmission: p.admission.Containers, Allocation: p.allocation,
			Grants: env.grants, Update: p.admission.Update, Ends: p.admission.Ends,
		},
		Reporting: pods.Reporting{
			Statuses: p.reports.Statuses, Reporter: p.reports.Pods(), Events: env.events, Probes: p.reports.Probing,
			HostIPs: env.node.HostIPs, Traces: p.reports.Traces,
		},
		Limits: settings,
		Log:    s.Log,
	}, p.sources.Kinds(), progress(s, p.reports))
}

func (p *podWork) start(ctx context.Context, s *service.Service, env *environment) {
	p.shutdown.Start(ctx)
	s.Go("allocation", p.allocation.Run)
	s.Go("dispatcher", p.dispatcher.Run)
	p.reports.Start(s)
	p.sources.Start(s, p.dispatcher)
	p.housekeeping.Start(s)
	p.resources.start(s)
	s.Go("helper pods", func(ctx context.Context) error { return p.admission.Sweep(ctx, env.workers) })
	p.answer(s, env)
}

// answer has s answer the callers of podsync's API.
func (p *podWork) answer(s *service.Service, env *environment) {
	api.Register(s, api.Deps{
		Workers: env.workers, Node: p.reports, Pods: p.sources.Local, Mirrors: p.reports.Mirrors,
		Evictor: eviction.New(env.workers, env.events, s.Log, s.Metrics), Dead: p.housekeeping,
		Volumes: p.resources.volumes.Manager,
		Explain: api.ExplainDeps{
			NodeName: env.name, Gated: p.gated, Sources: p.sources.Kinds(), Workers: env.workers, Dispatcher: p.dispatcher,
			Statuses: p.reports.Statuses, Probes: p.reports.Probing, Pulls: p.resources.images, Judge: p.admission,
			Allocation: p.allocation,
		},
	})
}

// limits are the workers' settings.
func limits(k *kubeletconfig.Config) pods.Limits {
	l := pods.Limits{Resync: k.Kubelet.SyncFrequency.Duration, KeepDead: int(k.Node.MaxDeadContainersPerContainer),
		Gated:               pods.GatedFields(k.FeatureEnabled),
		WithoutDeviceHealth: !k.FeatureEnabled("ResourceHealthStatus"),
		WithoutPodResources: !k.FeatureEnabled("InPlacePodLevelResourcesVerticalScaling")}
	if most := k.Kubelet.CrashLoopBackOff.MaxContainerRestartPeriod; most != nil {
		l.MaxBackoff = most.Duration
	}
	return l
}

// progress reports to the service's watchdog and the other services how far the dispatcher has come.
func progress(s *service.Service, reports *status.Reports) pods.Progress {
	started := sync.OnceFunc(func() { s.Started("waiting for pod sources") })
	return pods.Progress{
		Turn: func() {
			s.Pulse.Turn()
			started()
		},
		Synced: func() {
			reports.Synced()
			s.Ready("pods synced")
		},
		Reported: reports.Reported,
	}
}
