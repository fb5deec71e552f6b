package podsync

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	mount "k8s.io/mount-utils"

	nodestatusv1 "github.com/microlet/microlet/proto/microlet/nodestatus/v1"
	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/proto/subject"
	"github.com/microlet/microlet/services/internal/bus"
	"github.com/microlet/microlet/services/internal/eventref"
	"github.com/microlet/microlet/services/internal/outbox"
	"github.com/microlet/microlet/services/internal/service"
	"github.com/microlet/microlet/services/podsync/internal/admission"
	"github.com/microlet/microlet/services/podsync/internal/api"
	"github.com/microlet/microlet/services/podsync/internal/apiclient"
	"github.com/microlet/microlet/services/podsync/internal/assignment"
	"github.com/microlet/microlet/services/podsync/internal/calllimit"
	"github.com/microlet/microlet/services/podsync/internal/cgroup"
	"github.com/microlet/microlet/services/podsync/internal/cgroupdriver"
	"github.com/microlet/microlet/services/podsync/internal/cleanup"
	"github.com/microlet/microlet/services/podsync/internal/containeradmission"
	"github.com/microlet/microlet/services/podsync/internal/containers"
	"github.com/microlet/microlet/services/podsync/internal/firewall"
	"github.com/microlet/microlet/services/podsync/internal/gateway"
	"github.com/microlet/microlet/services/podsync/internal/helperpods"
	"github.com/microlet/microlet/services/podsync/internal/hook"
	"github.com/microlet/microlet/services/podsync/internal/hostip"
	"github.com/microlet/microlet/services/podsync/internal/image"
	"github.com/microlet/microlet/services/podsync/internal/logrotate"
	"github.com/microlet/microlet/services/podsync/internal/machine"
	"github.com/microlet/microlet/services/podsync/internal/mirror"
	"github.com/microlet/microlet/services/podsync/internal/monitor"
	"github.com/microlet/microlet/services/podsync/internal/network"
	"github.com/microlet/microlet/services/podsync/internal/nodeobject"
	"github.com/microlet/microlet/services/podsync/internal/objects"
	"github.com/microlet/microlet/services/podsync/internal/plegliveness"
	"github.com/microlet/microlet/services/podsync/internal/podconfig"
	"github.com/microlet/microlet/services/podsync/internal/podimages"
	"github.com/microlet/microlet/services/podsync/internal/podlogs"
	"github.com/microlet/microlet/services/podsync/internal/predecessor"
	"github.com/microlet/microlet/services/podsync/internal/probes"
	"github.com/microlet/microlet/services/podsync/internal/publish"
	"github.com/microlet/microlet/services/podsync/internal/relist"
	"github.com/microlet/microlet/services/podsync/internal/rootdir"
	"github.com/microlet/microlet/services/podsync/internal/runtime"
	"github.com/microlet/microlet/services/podsync/internal/runtimeclass"
	"github.com/microlet/microlet/services/podsync/internal/runtimestate"
	"github.com/microlet/microlet/services/podsync/internal/source"
	"github.com/microlet/microlet/services/podsync/internal/statusmanager"
	"github.com/microlet/microlet/services/podsync/internal/volume"
	"github.com/microlet/microlet/services/podsync/internal/worker"
)

// node is podsync's rooms, furnished and connected. The order of its construction is
// the order in which the rooms need each other.
type node struct {
	cfg     Config
	service *service.Service
	name    string
	driver  *cgroupdriver.Driver

	client   kubernetes.Interface
	conns    *runtime.Services
	runtime  *runtime.Runtime
	gateway  *gateway.Gateway
	cgroups  *cgroup.Manager
	objects  *objects.Store
	tokens   *objects.Tokens
	services *serviceEnv
	volumes  *volume.Manager
	images   *image.Puller
	config   *podconfig.Builder
	state    *runtimestate.State
	logs     podlogs.Folders
	rotator  *logrotate.Rotator
	cleanup  *cleanup.Cleanup
	firewall *firewall.Firewall // nil without makeIPTablesUtilChains

	events         *outbox.Recorder
	statuses       *statusmanager.Manager
	observers      *podObservers
	assigner       *assignment.Assigner
	probeResults   *probes.Store
	publisher      *publish.Publisher
	hostIPs        *hostip.HostIPs
	capacity       machine.Capacity
	workers        *worker.Workers
	dispatcher     *worker.Dispatcher
	monitor        *monitor.Monitor
	relister       *relist.Relister
	pleg           *plegliveness.Liveness
	object         *nodeobject.Object
	admitter       *admission.Admitter
	helperPods     *helperpods.Admission
	runtimeClasses runtimeclass.Finder
	sources        []podSource
	mirrors        *mirror.Manager
	local          *source.Local

	// containers are those of all pods, by which the gateway decides.
	containers containers.Index
}

func newNode(s *service.Service, cfg Config) (*node, error) {
	n := &node{cfg: cfg, service: s, workers: worker.NewWorkers(worker.NewMetrics(s.Metrics))}
	for _, build := range []func() error{
		n.connect, n.buildRuntime, n.buildResources, n.buildObjects, n.buildConfig, n.buildReports, n.buildSources, n.buildProbes, n.buildGarbage, n.buildAdmission, n.buildLoops, n.buildFirewall,
	} {
		if err := build(); err != nil {
			n.close()
			return nil, err
		}
	}
	return n, nil
}

func (n *node) close() {
	if n.conns != nil {
		if err := n.conns.Close(); err != nil {
			n.service.Log.Warn("connections to the runtime not closed", "err", err)
		}
	}
}

// connect makes the clients of the apiserver, if there is to be one, and of the runtime. Neither is waited for.
func (n *node) connect() error {
	var err error
	if n.name, err = n.cfg.Kubelet.NodeName(); err != nil {
		return err
	}
	if n.client, err = apiclient.New(n.cfg.Kubelet); err != nil {
		return err
	}
	n.conns, err = runtime.Dial(runtime.DialOptions{
		RuntimeEndpoint: n.cfg.Kubelet.RuntimeEndpoint(), ImageEndpoint: n.cfg.Kubelet.ImageEndpoint(),
		Metrics: n.service.Metrics, Log: n.service.Log,
	})
	return err
}

func (n *node) buildRuntime() error {
	var err error
	n.runtime, err = runtime.New(n.conns.Runtime, n.conns.Image, runtime.Options{
		Limits:  calllimit.Limits{Places: n.cfg.RuntimeCalls},
		Timeout: n.cfg.Kubelet.Kubelet.RuntimeRequestTimeout.Duration,
		Log:     n.service.Log, Metrics: n.service.Metrics,
	})
	if err != nil {
		return err
	}
	n.gateway, err = gateway.New(gateway.Options{
		Runtime: n.conns.Runtime, Image: n.conns.Image, Containers: &n.containers, Checkpoints: rootdir.Dir(n.cfg.Kubelet.Node.RootDir).Checkpoints(),
		Log: n.service.Log, Metrics: n.service.Metrics, Peers: n.cfg.Service.Peers(),
	})
	return err
}

func (n *node) buildResources() error {
	k := &n.cfg.Kubelet.Kubelet
	if err := cgroup.CheckVersion(*k.FailCgroupV1); err != nil {
		return err
	}
	n.driver = cgroupdriver.Find(context.Background(), n.runtime, k.CgroupDriver, n.service.Log)
	var err error
	if n.capacity, err = machine.Read(n.cfg.Kubelet); err != nil {
		return err
	}
	throttling := k.MemoryThrottlingFactor
	if !n.cfg.Kubelet.FeatureEnabled("MemoryQoS") {
		throttling = nil
	}
	n.cgroups, err = cgroup.New(cgroup.Options{
		MemoryThrottlingFactor: throttling,
		Root:                   k.CgroupRoot, Driver: n.driver.Name, PerQOS: *k.CgroupsPerQOS,
		CPUCFSQuota: *k.CPUCFSQuota, CPUCFSQuotaPeriod: k.CPUCFSQuotaPeriod.Duration,
		PodPidsLimit: *k.PodPidsLimit, EnforceNodeAllocatable: k.EnforceNodeAllocatable,
		Allocatable: n.capacity.Enforced, Capacity: n.capacity.Limits, Log: n.service.Log,
	})
	return err
}

func (n *node) buildObjects() error {
	asked := n.client
	if n.standalone() {
		asked = nil // so that it tells what could not be asked for
	}
	n.objects = objects.New(asked, objects.Options{
		Strategy: string(n.cfg.Kubelet.Kubelet.ConfigMapAndSecretChangeDetectionStrategy),
		Changed:  func(uid types.UID) { n.workers.Refresh(uid, "object") }, Log: n.service.Log,
	})
	n.tokens = objects.NewTokens(asked, objects.Options{Log: n.service.Log})
	n.services = newServiceEnv(n.client, n.standalone())
	n.runtimeClasses = newRuntimeClasses(n.client, n.services.factory)
	n.state = runtimestate.New(n.runtime, n.runtimeClasses)
	n.buildHostIPs()
	n.volumes = volume.New(volume.Options{
		RootDir: n.cfg.Kubelet.Node.RootDir, Objects: n.objects, Tokens: n.tokens, Mounter: mount.New(""),
		Allocatable: func() v1.ResourceList { return n.capacity.Allocatable }, Log: n.service.Log,
		Private: n.privateFolder, BootID: n.capacity.BootID,
	})
	return nil
}

// buildHostIPs has the pods' statuses corrected when nodestatus reports other addresses.
func (n *node) buildHostIPs() {
	reported := bus.Watch[nodestatusv1.Addresses](n.service.Bus, subject.Node, subject.NodeAddresses, func(string) { n.hostIPs.Heard() })
	n.hostIPs = hostip.New(hostip.Options{
		Configured: n.cfg.Kubelet.NodeIPs(),
		Reported:   func() (*nodestatusv1.Addresses, bool) { return reported.Get(subject.NodeAddresses) },
		Node:       func() *v1.Node { return n.object.Node() },
		Changed:    func() { n.workers.WakeAll("addresses") },
	})
}

func (n *node) buildConfig() error {
	k := &n.cfg.Kubelet.Kubelet
	n.events = outbox.NewRecorder(n.service.Bus, n.name, n.service.Log)
	dns, err := clusterDNS(k.ClusterDNS)
	if err != nil {
		return err
	}
	resolver := network.New(network.Options{
		NodeIPs: n.cfg.Kubelet.NodeIPs(), ClusterDNS: dns, ClusterDomain: k.ClusterDomain,
		ResolvConf: *k.ResolverConfig, Log: n.service.Log,
		Warn: func(p *v1.Pod, reason, message string) { n.events.Event(p, v1.EventTypeWarning, reason, message) },
		WarnNode: func(reason, message string) {
			n.events.Event(eventref.Node(n.name), v1.EventTypeWarning, reason, message)
		},
	})
	_ = resolver.Check() // which tells the log and the Node's events
	host, err := podconfig.DefaultNode(n.cfg.Kubelet.Node.RootDir)
	if err != nil {
		return err
	}
	host.PodLogsDir, host.ContainerLogsDir, host.LogsGroup = k.PodLogsDir, n.cfg.ContainerLogLinks, role.GroupLogs
	host.ClusterDomain, host.SeccompDefault = k.ClusterDomain, n.cfg.Kubelet.SeccompDefault()
	host.CPUCFSQuota, host.CPUCFSQuotaPeriod = *k.CPUCFSQuota, k.CPUCFSQuotaPeriod.Duration
	host.SingleProcessOOMKill, host.MemoryThrottlingFactor = k.SingleProcessOOMKill, k.MemoryThrottlingFactor
	host.StopSignals = n.cfg.Kubelet.FeatureEnabled("ContainerStopSignals")
	host.MemoryQoS = n.cfg.Kubelet.FeatureEnabled("MemoryQoS")
	host.Allocatable = func() v1.ResourceList { return n.capacity.Allocatable }
	host.HostIPs = n.hostIPs.Assumed
	host.RecursiveReadOnly = n.state.RecursiveReadOnly
	n.config = &podconfig.Builder{Node: host, DNS: resolver, Objects: n.objects, Services: n.services, SubPaths: n.volumes}
	n.images, err = image.NewPuller(image.Options{
		Runtime: n.runtime, Events: n.events, Log: n.service.Log, Metrics: n.service.Metrics,
		Serial: *k.SerializeImagePulls, MaxParallel: k.MaxParallelImagePulls,
		QPS: float32(*k.RegistryPullQPS), Burst: int(k.RegistryBurst), RootDir: n.cfg.Kubelet.Node.RootDir,
	})
	return err
}

func clusterDNS(servers []string) ([]netip.Addr, error) {
	out := make([]netip.Addr, 0, len(servers))
	for _, s := range servers {
		ip, err := netip.ParseAddr(s)
		if err != nil {
			return nil, fmt.Errorf("clusterDNS: %w", err)
		}
		out = append(out, ip)
	}
	return out, nil
}

func (n *node) buildReports() error {
	n.publisher = publish.New(
		n.service.Bus.Own(subject.Pods), n.service.Bus.Own(subject.PodStatus), n.service.Bus.Own(subject.Node), n.service.Log)
	if n.standalone() {
		return nil
	}
	var err error
	n.statuses, err = statusmanager.New(statusmanager.Options{
		Client: statusmanager.NewClient(n.client), Log: n.service.Log, Metrics: n.service.Metrics,
	})
	return err
}

func (n *node) buildLoops() error {
	var maxBackoff time.Duration
	if limit := n.cfg.Kubelet.Kubelet.CrashLoopBackOff.MaxContainerRestartPeriod; limit != nil {
		maxBackoff = limit.Duration
	}
	hooks, err := hook.New(hook.Options{Exec: n.runtime, Events: n.events, Log: n.service.Log, Metrics: n.service.Metrics})
	if err != nil {
		return err
	}
	n.cleanup.PreStop = hooks.Orphan
	var gated []string
	if n.cfg.Kubelet.FeatureEnabled("ContainerStopSignals") {
		gated = append(gated, worker.StopSignalField)
	}
	helpers := n.helpers()
	n.dispatcher = worker.NewDispatcher(n.workers, worker.Deps{
		RuntimeSide: worker.RuntimeSide{
			Runtime: n.runtime, Remover: cleanup.Remover{Runtime: runtime.LowPriority{Runtime: n.runtime}}, RuntimeState: n.state,
			RuntimeClasses: n.runtimeClasses, Predecessors: predecessor.New(n.runtime, n.workers, n.service.Log),
		},
		Resources: worker.Resources{
			Images:  podimages.New(n.images, n.runtime, n.objects, n.events),
			Volumes: n.volumes, Cgroups: n.cgroups, Config: n.config, Objects: n.objects, Logs: n.logs, Hooks: hooks,
		},
		Admissions: worker.Admissions{Admission: n.helperPods, ContainerAdmission: containeradmission.New(helpers, n.runtime)},
		Reporting: worker.Reporting{
			Mirrors: n.mirrors, Observer: n.observers, Events: n.events, Probes: n.probeResults, HostIPs: n.hostIPs,
		},
		Limits: worker.Limits{
			Resync: n.cfg.Kubelet.Kubelet.SyncFrequency.Duration, Gated: gated, MaxBackoff: maxBackoff,
			KeepDead: int(n.cfg.Kubelet.Node.MaxDeadContainersPerContainer),
		},
		Log: n.service.Log,
	}, n.sourceKinds(), worker.Progress{Turn: n.service.Pulse.Turn, Synced: n.sourcesSynced, Reported: n.statesReported})
	n.monitor = monitor.New(n.runtime, n.driver.Name, n.service.Log, n.state, &nodeReports{publisher: n.publisher, capacity: n.capacity})
	n.pleg = plegliveness.Watch(n.service.Bus, n.workers)
	n.relister = &relist.Relister{
		Runtime: n.runtime, Workers: n.workers, LastSign: n.pleg.Last,
		Log: n.service.Log, Relists: relist.NewCounter(n.service.Metrics),
	}
	api.Register(n.service, n.workers, n.pleg, n.local, n.mirrors)
	return nil
}

// sourcesSynced is called once, when every pod of every source is known.
func (n *node) sourcesSynced() {
	n.publisher.PodsComplete()
	n.assigner.Complete()
	n.mirrors.AllWanted()
	n.service.Ready("pods synced")
}

// statesReported is called once after that, when the state of every pod is known too.
func (n *node) statesReported() {
	n.containers.SetComplete()
	n.publisher.StatusesComplete()
}

var _ source.Sink = (*worker.Dispatcher)(nil)

// standalone reports whether there is no apiserver: pods come from manifests and run-pod alone, and nobody is told of them.
func (n *node) standalone() bool { return n.cfg.Kubelet.Standalone() }
