package podsync

import (
	"context"

	"k8s.io/client-go/kubernetes"

	"github.com/microlet/microlet/services/internal/kubeletconfig"
	"github.com/microlet/microlet/services/internal/outbox"
	"github.com/microlet/microlet/services/internal/service"
	"github.com/microlet/microlet/services/podsync/internal/api"
	"github.com/microlet/microlet/services/podsync/internal/apiclient"
	"github.com/microlet/microlet/services/podsync/internal/cluster"
	"github.com/microlet/microlet/services/podsync/internal/containerruntime"
	"github.com/microlet/microlet/services/podsync/internal/housekeeping"
	"github.com/microlet/microlet/services/podsync/internal/machine"
	"github.com/microlet/microlet/services/podsync/internal/plegliveness"
	"github.com/microlet/microlet/services/podsync/internal/podadmission"
	"github.com/microlet/microlet/services/podsync/internal/podreports"
	"github.com/microlet/microlet/services/podsync/internal/podresources"
	"github.com/microlet/microlet/services/podsync/internal/podsources"
	"github.com/microlet/microlet/services/podsync/internal/relist"
	"github.com/microlet/microlet/services/podsync/internal/thisnode"
	"github.com/microlet/microlet/services/podsync/internal/worker"
)

// surroundings are what podsync finds around it: the apiserver, the machine, the runtime. The workers are among them since
// news of these wakes them; they are filled by the dispatcher, which is made last.
type surroundings struct {
	name     string
	client   kubernetes.Interface
	capacity machine.Capacity
	events   *outbox.Recorder
	workers  *worker.Workers
	cluster  *cluster.Cluster
	runtime  *containerruntime.Runtime
	node     *thisnode.Node
}

// newSurroundings waits for none of them. The caller closes the runtime.
func newSurroundings(ctx context.Context, s *service.Service, cfg *Config) (*surroundings, error) {
	k := cfg.Kubelet
	name, err := k.NodeName()
	if err != nil {
		return nil, err
	}
	client, err := apiclient.New(k)
	if err != nil {
		return nil, err
	}
	capacity, err := machine.Read(k)
	if err != nil {
		return nil, err
	}
	workers := worker.NewWorkers(worker.NewMetrics(s.Metrics))
	objects := cluster.New(client, k, workers, s.Log)
	cri, err := containerruntime.Connect(ctx, containerruntime.Options{
		Kubelet: k, Classes: objects.RuntimeClasses, Calls: cfg.RuntimeCalls, Service: s,
	})
	if err != nil {
		return nil, err
	}
	return &surroundings{
		name: name, client: client, capacity: capacity, events: outbox.NewRecorder(s.Bus, name, s.Log), workers: workers,
		cluster: objects, runtime: cri, node: thisnode.New(thisnode.Options{
			Name: name, Client: client, Kubelet: k, Capacity: capacity, Runtime: cri.State, Bus: s.Bus, Workers: workers,
		}),
	}, nil
}

func (e *surroundings) start(s *service.Service, reports *podreports.Reports) {
	s.Go("events", e.events.Run)
	e.cluster.Start(s)
	e.node.Start(s)
	e.runtime.Start(s, reports.Node())
}

// podWork is what podsync does for pods, from their sources to what is left of them.
type podWork struct {
	reports      *podreports.Reports
	sources      *podsources.Sources
	resources    *podresources.Resources
	admission    *podadmission.Admission
	dispatcher   *worker.Dispatcher
	housekeeping *housekeeping.Housekeeping
}

func newPodWork(s *service.Service, cfg *Config, e *surroundings) (*podWork, error) {
	k := cfg.Kubelet
	reports, err := podreports.New(podreports.Options{
		NodeName: e.name, Kubelet: k, Client: e.client, Bus: s.Bus, Workers: e.workers, Gateway: e.runtime.Containers,
		Capacity: e.capacity, Log: s.Log, Metrics: s.Metrics,
	})
	if err != nil {
		return nil, err
	}
	sources, err := podsources.New(podsources.Options{
		NodeName: e.name, Kubelet: k, Client: e.client, Mirrors: reports.Mirrors, Events: e.events, Log: s.Log, Metrics: s.Metrics,
	})
	if err != nil {
		return nil, err
	}
	helpers := podadmission.Helpers(cfg.HelperNamespace, cfg.Service.RuntimeDir)
	resources, err := podresources.New(podresources.Options{
		Kubelet: k, LogLinks: cfg.ContainerLogLinks, RuntimeDir: cfg.Service.RuntimeDir, Helpers: helpers, Capacity: e.capacity,
		Runtime: e.runtime, Cluster: e.cluster, Node: e.node, Events: e.events, Log: s.Log, Metrics: s.Metrics,
	})
	if err != nil {
		return nil, err
	}
	admission, err := podadmission.New(podadmission.Options{
		Kubelet: k, Helpers: helpers, HelperRecords: cfg.Service.HelpersDir(), Nodes: e.node.Object, Runtime: e.runtime,
		Workers: e.workers, Events: e.events, Log: s.Log, Metrics: s.Metrics,
	})
	if err != nil {
		return nil, err
	}
	dispatcher := worker.NewDispatcher(e.workers, worker.Deps{
		RuntimeSide: e.runtime.ForWorkers(e.workers),
		Resources:   resources.ForWorkers(),
		Admissions:  admission.ForWorkers(),
		Reporting: worker.Reporting{
			Mirrors: reports.Mirrors, Observer: reports.Pods(), Events: e.events, Probes: reports.Probing, HostIPs: e.node.HostIPs,
		},
		Limits: limits(k),
		Log:    s.Log,
	}, sources.Kinds(), progress(s, reports))
	house, err := housekeeping.New(housekeeping.Options{
		Kubelet: k, Runtime: e.runtime, Resources: resources, Tokens: e.cluster.Tokens, Workers: e.workers, Sources: dispatcher,
		Waiting: s.Waiting, Node: e.node.Reference, Events: e.events, Log: s.Log, Metrics: s.Metrics,
	})
	return &podWork{reports, sources, resources, admission, dispatcher, house}, err
}

func (p *podWork) start(s *service.Service, e *surroundings) {
	s.Go("dispatcher", p.dispatcher.Run)
	p.reports.Start(s)
	p.sources.Start(s, p.dispatcher)
	p.housekeeping.Start(s)
	s.Go("helper pods", func(ctx context.Context) error { return p.admission.Sweep(ctx, e.workers) })
}

// startWakers has the workers woken from outside: by pleg, by a relist while pleg is silent, and by callers of the API.
func startWakers(s *service.Service, e *surroundings, p *podWork) {
	pleg := plegliveness.Watch(s.Bus, e.workers)
	relister := &relist.Relister{
		Runtime: e.runtime, Workers: e.workers, LastProof: pleg.Last, Log: s.Log, Relists: relist.NewCounter(s.Metrics),
	}
	s.Go("relist", relister.Run)
	api.Register(s, e.workers, pleg, p.sources.Local, p.reports.Mirrors)
}

// limits are the workers' settings.
func limits(k *kubeletconfig.Config) worker.Limits {
	l := worker.Limits{Resync: k.Kubelet.SyncFrequency.Duration, KeepDead: int(k.Node.MaxDeadContainersPerContainer)}
	if most := k.Kubelet.CrashLoopBackOff.MaxContainerRestartPeriod; most != nil {
		l.MaxBackoff = most.Duration
	}
	if k.FeatureEnabled("ContainerStopSignals") {
		l.Gated = append(l.Gated, worker.StopSignalField)
	}
	return l
}

// progress tells the service's watchdog and the other services how far the dispatcher has come.
func progress(s *service.Service, reports *podreports.Reports) worker.Progress {
	return worker.Progress{
		Turn: s.Pulse.Turn,
		Synced: func() {
			reports.Synced()
			s.Ready("pods synced")
		},
		Reported: reports.Reported,
	}
}
