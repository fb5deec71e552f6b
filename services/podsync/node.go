package podsync

import (
	"context"
	"sync"

	"github.com/microlet/microlet/services/internal/kubeletconfig"
	"github.com/microlet/microlet/services/internal/outbox"
	"github.com/microlet/microlet/services/internal/service"
	"github.com/microlet/microlet/services/podsync/internal/cluster"
	containerruntime "github.com/microlet/microlet/services/podsync/internal/cri"
	"github.com/microlet/microlet/services/podsync/internal/cri/relist"
	"github.com/microlet/microlet/services/podsync/internal/gracefulshutdown"
	"github.com/microlet/microlet/services/podsync/internal/grpcapi"
	"github.com/microlet/microlet/services/podsync/internal/housekeeping"
	"github.com/microlet/microlet/services/podsync/internal/nodeclient"
	"github.com/microlet/microlet/services/podsync/internal/podadmission"
	"github.com/microlet/microlet/services/podsync/internal/podsetup"
	podsources "github.com/microlet/microlet/services/podsync/internal/sources"
	"github.com/microlet/microlet/services/podsync/internal/status"
	"github.com/microlet/microlet/services/podsync/internal/thisnode"
	"github.com/microlet/microlet/services/podsync/internal/worker"
)

// environment is what podsync works with: the API server, the machine, the runtime. The workers are part of it because
// changes in it wake them. The dispatcher, which is created last, adds them.
type environment struct {
	name    string
	client  *nodeclient.Client
	events  *outbox.Recorder
	workers *worker.Workers
	cluster *cluster.Cluster
	runtime *containerruntime.Runtime
	node    *thisnode.Node
}

// newEnvironment waits for nothing but the question for the cgroup driver. The caller closes the runtime.
func newEnvironment(ctx context.Context, s *service.Service, cfg *Config) (*environment, error) {
	k := cfg.Kubelet
	name, err := k.NodeName()
	if err != nil {
		return nil, err
	}
	events := outbox.NewRecorder(s.Bus, name, s.Log)
	client, err := nodeclient.New(s, k, name, events)
	if err != nil {
		return nil, err
	}
	workers := worker.NewWorkers(worker.NewMetrics(s.Metrics))
	objects, err := cluster.New(client, k, workers, s.Log)
	if err != nil {
		return nil, err
	}
	cri, err := containerruntime.Connect(ctx, containerruntime.Options{
		Kubelet: k, Classes: objects.RuntimeClasses, Calls: cfg.RuntimeCalls, Service: s,
	})
	if err != nil {
		return nil, err
	}
	node, err := thisnode.New(thisnode.Options{
		Name: name, Client: client, Kubelet: k, Runtime: cri.State, PodCIDRs: cri, Bus: s.Bus, Workers: workers,
		Log: s.Log, Metrics: s.Metrics,
	})
	if err != nil {
		cri.Close()
		return nil, err
	}
	return &environment{
		name:    name,
		client:  client,
		events:  events,
		workers: workers,
		cluster: objects,
		runtime: cri,
		node:    node,
	}, nil
}

func (env *environment) start(s *service.Service, reports *status.Reports) {
	s.Go("events", env.events.Run)
	env.client.Start(s, env.node.Object.Node)
	env.cluster.Start(s)
	env.node.Start(s)
	env.runtime.Start(s, reports.Node())
}

// podWork is what podsync does for pods, from their sources to what is left of them.
type podWork struct {
	reports      *status.Reports
	shutdown     *gracefulshutdown.Shutdown // nil: the node ends at once
	sources      *podsources.Sources
	resources    *podsetup.Resources
	admission    *podadmission.Admission
	dispatcher   *worker.Dispatcher
	housekeeping *housekeeping.Housekeeping
	// gated are the pod fields that are supported because their feature gate is on.
	gated []string
}

func newPodWork(ctx context.Context, s *service.Service, cfg *Config, env *environment) (*podWork, error) {
	k := cfg.Kubelet
	reports, err := status.New(status.Options{
		NodeName: env.name, Kubelet: k, Client: env.client, Bus: s.Bus, Workers: env.workers,
		Gateway: env.runtime.Containers, Capacity: env.node.Capacity, Events: env.events, Tracer: s.Tracer,
		Log: s.Log, Metrics: s.Metrics,
	})
	if err != nil {
		return nil, err
	}
	sources, err := podsources.New(podsources.Options{
		NodeName: env.name, Kubelet: k, Client: env.client, Mirrors: reports.Mirrors, Events: env.events, Log: s.Log,
		Metrics: s.Metrics,
	})
	if err != nil {
		return nil, err
	}
	helpers := podadmission.Helpers(cfg.HelperNamespace, cfg.Service.RuntimeDir)
	resources, err := podsetup.New(ctx, podsetup.Options{
		Kubelet: k, LogLinks: cfg.ContainerLogLinks, RuntimeDir: cfg.Service.RuntimeDir, Helpers: helpers,
		Capacity: env.node.Capacity, Runtime: env.runtime, Cluster: env.cluster, Node: env.node, Reports: reports,
		Bus: s.Bus, Events: env.events, Log: s.Log, Metrics: s.Metrics,
	})
	if err != nil {
		return nil, err
	}
	admit := podadmission.Options{
		Kubelet: k, Helpers: helpers, HelperRecords: cfg.Service.HelpersDir(), Nodes: env.node.Object,
		Bus: s.Bus, Runtime: env.runtime, Workers: env.workers, Events: env.events,
		Log: s.Log, Metrics: s.Metrics,
	}
	down := gracefulshutdown.New(gracefulshutdown.Options{
		Kubelet: k, Service: s, Pods: env.workers, Delivered: reports.Mirrors.Delivered, Node: env.node.Object.Node,
		Reference: env.node.Reference, Events: env.events, BootID: env.node.Capacity.BootID,
	})
	if down != nil {
		admit.Shutdown = down.Manager
	}
	admission, err := podadmission.New(admit)
	if err != nil {
		return nil, err
	}
	settings := limits(k)
	dispatcher := worker.NewDispatcher(env.workers, worker.Deps{
		RuntimeDeps: env.runtime.ForWorkers(env.workers),
		Resources:   resources.ForWorkers(),
		Admissions:  admission.ForWorkers(),
		Reporting: worker.Reporting{
			Mirrors: reports.Mirrors, Reporter: reports.Pods(), Events: env.events, Probes: reports.Probing,
			HostIPs: env.node.HostIPs, Traces: reports.Traces,
		},
		Limits: settings,
		Log:    s.Log,
	}, sources.Kinds(), progress(s, reports))
	house, err := housekeeping.New(housekeeping.Options{
		Kubelet: k, Runtime: env.runtime, Resources: resources, Tokens: env.cluster.Tokens, Workers: env.workers,
		Sources: dispatcher, Waiting: s.Waiting, Node: env.node.Reference, Events: env.events, Tracer: s.Tracer,
		Log: s.Log, Metrics: s.Metrics,
	})
	return &podWork{reports, down, sources, resources, admission, dispatcher, house, settings.Gated}, err
}

func (p *podWork) start(ctx context.Context, s *service.Service, env *environment) {
	p.shutdown.Start(ctx)
	s.Go("dispatcher", p.dispatcher.Run)
	p.reports.Start(s)
	p.sources.Start(s, p.dispatcher)
	p.housekeeping.Start(s)
	p.resources.Start(s)
	s.Go("helper pods", func(ctx context.Context) error { return p.admission.Sweep(ctx, env.workers) })
}

// startWakers has the workers woken from outside: by pleg, by a relist while pleg is silent, and by callers of the API.
func startWakers(s *service.Service, env *environment, p *podWork) {
	pleg := relist.Start(s, env.runtime, env.workers)
	grpcapi.Register(s, grpcapi.Options{
		NodeName:     env.name,
		Gated:        p.gated,
		PLEG:         pleg,
		Sources:      p.sources,
		Admission:    p.admission,
		Dispatcher:   p.dispatcher,
		Workers:      env.workers,
		Resources:    p.resources,
		Reports:      p.reports,
		Housekeeping: p.housekeeping,
		Events:       env.events,
		Log:          s.Log,
	})
}

// limits are the workers' settings.
func limits(k *kubeletconfig.Config) worker.Limits {
	l := worker.Limits{Resync: k.Kubelet.SyncFrequency.Duration, KeepDead: int(k.Node.MaxDeadContainersPerContainer),
		Gated: worker.GatedFields(k.FeatureEnabled)}
	if most := k.Kubelet.CrashLoopBackOff.MaxContainerRestartPeriod; most != nil {
		l.MaxBackoff = most.Duration
	}
	return l
}

// progress tells the service's watchdog and the other services how far the dispatcher has come.
func progress(s *service.Service, reports *status.Reports) worker.Progress {
	started := sync.OnceFunc(func() { s.Started("waiting for pod sources") })
	return worker.Progress{
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
