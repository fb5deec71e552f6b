// Package status distributes what podsync learns about pods.
//
// Pod status goes to the API, entries go to the bus, pods with probes go to the prober, and container IDs go to the
// CRI gateway. The gateway learns of a container first, because another service may ask for it as soon as the bus
// shows it. A bucket is complete only after every entry was put.
package status

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	podsyncv1 "github.com/microlet/microlet/proto/microlet/podsync/v1"
	"github.com/microlet/microlet/proto/subject"
	"github.com/microlet/microlet/services/internal/bus"
	"github.com/microlet/microlet/services/internal/kubeletconfig"
	"github.com/microlet/microlet/services/internal/outbox"
	"github.com/microlet/microlet/services/internal/podtrace"
	"github.com/microlet/microlet/services/internal/service"
	"github.com/microlet/microlet/services/internal/tracing"
	"github.com/microlet/microlet/services/podsync/internal/pod"
	"github.com/microlet/microlet/services/podsync/internal/probes"
	"github.com/microlet/microlet/services/podsync/internal/status/internal/manager"
	"github.com/microlet/microlet/services/podsync/internal/status/internal/mirror"
	"github.com/microlet/microlet/services/podsync/internal/status/internal/publisher"
)

// Options of Reports.
type Options struct {
	NodeName string
	Kubelet  *kubeletconfig.Config
	Client   kubernetes.Interface
	Bus      *bus.Client
	Workers  probes.Workers
	Gateway  Gateway
	Machine  Machine
	// Events are in the traces of their pods, which Tracer records; nil records none.
	Events  *outbox.Recorder
	Tracer  *tracing.Tracer
	Log     *slog.Logger
	Metrics prometheus.Registerer
}

// Gateway decides by the containers of all pods; see cri.Runtime.
type Gateway interface {
	SetPod(p *v1.Pod)
	SetState(uid types.UID, s *pod.State)
	SetComplete()
	Forget(uid types.UID)
}

// Machine is what the bus shows of the node's machine.
type Machine struct {
	Capacity, Allocatable v1.ResourceList
	SystemUUID            string
}

// Prober probes pods; see probes.Probing.
type Prober interface {
	Set(p *v1.Pod)
	Forget(uid types.UID)
	Complete()
}

// Reports are podsync's.
type Reports struct {
	// Statuses bring the statuses of pods to the API, Mirrors those of static pods.
	Statuses *Statuses
	Mirrors  *mirror.Manager
	// Probing brings the prober's results to the workers.
	Probing *probes.Probing
	// Traces are those of the pods; nil is none.
	Traces *podtrace.Traces

	pods PodReporter
	node NodeReporter
	// volumes and csiDrivers are those that were reported last.
	volumes    atomic.Pointer[podsyncv1.Volumes]
	csiDrivers atomic.Pointer[podsyncv1.CSIDrivers]
	// deliver brings statuses to the API; nil without an API server.
	deliver func(context.Context) error
}

// New returns reports that send nothing before Start.
func New(o Options) (*Reports, error) {
	r := &Reports{Probing: probes.New(o.Bus, o.Workers, o.Log, o.Metrics), Traces: podtrace.New(o.Tracer)}
	if r.Traces != nil {
		o.Events.InTraces(func(uid types.UID) string { return r.Traces.Of(uid).String() })
	}
	bus := publisher.New(o.Bus.Own(subject.Pods), o.Bus.Own(subject.PodStatus), o.Bus.Own(subject.Node), r.Traces,
		o.Log)
	r.pods = PodReporter{gateway: o.Gateway, bus: bus, prober: r.Probing, traces: r.Traces}
	r.node = NodeReporter{bus: bus, machine: o.Machine}
	mirrors := mirror.Options{NodeName: o.NodeName, Statuses: noStatuses{}, Log: o.Log, Metrics: o.Metrics}
	r.Statuses = &Statuses{pods: noStatuses{}}
	if !o.Kubelet.Standalone() {
		statuses, err := manager.New(manager.Options{
			Client: manager.NewClient(o.Client), Traces: r.Traces,
			Log: o.Log, Metrics: o.Metrics,
		})
		if err != nil {
			return nil, err
		}
		r.Statuses.pods, r.deliver = statuses, statuses.Run
		mirrors.API, mirrors.Statuses = mirror.NewAPI(o.Client), statuses
	}
	var err error
	r.Mirrors, err = mirror.New(mirrors)
	r.Statuses.mirrors = r.Mirrors
	return r, err
}

// Start has s deliver statuses, keep mirror pods and assign probes.
func (r *Reports) Start(s *service.Service) {
	if r.deliver != nil {
		s.Go("statuses", r.deliver)
		s.Go("mirrors", r.Mirrors.Run)
	}
	s.Go("probe assignment", r.Probing.Run)
}

// Pods gets each pod from its worker.
func (r *Reports) Pods() *PodReporter { return &r.pods }

// Node learns what the runtime says of itself.
func (r *Reports) Node() *NodeReporter { return &r.node }

// CSIDrivers reports what CSI drivers say of the node. They register one after the other, also long after the start.
func (r *Reports) CSIDrivers(m *podsyncv1.CSIDrivers) {
	r.csiDrivers.Store(m)
	r.node.bus.CSIDrivers(m)
}

// VolumesInUse reports which volumes must not be detached.
func (r *Reports) VolumesInUse(m *podsyncv1.Volumes) {
	r.volumes.Store(m)
	r.node.bus.Volumes(m)
}

// NodeVolumes returns what was reported last of volumes; nil is nothing yet.
func (r *Reports) NodeVolumes() (inUse *podsyncv1.Volumes, drivers *podsyncv1.CSIDrivers) {
	return r.volumes.Load(), r.csiDrivers.Load()
}

// Synced reports that every pod of every source is known. It is called once.
func (r *Reports) Synced() {
	r.pods.synced()
	r.Mirrors.AllWanted()
}

// Reported reports, after that, that the state of every pod is known too, but for those that cannot be read. It is
// called once.
func (r *Reports) Reported() { r.pods.reported() }

// PodReporter passes on what workers report of pods. The CRI gateway comes first.
type PodReporter struct {
	gateway Gateway
	bus     *publisher.Publisher
	prober  Prober
	traces  *podtrace.Traces
}

// Pod reports a pod that has a worker, with the resources that are granted. desired is the pod with those that it asks
// for.
func (o *PodReporter) Pod(api, desired *v1.Pod, from podsyncv1.PodSource, terminating bool) {
	o.gateway.SetPod(api)
	o.bus.Pod(api, desired, from, terminating)
	o.prober.Set(api)
}

// Status reports what became of a pod.
func (o *PodReporter) Status(uid types.UID, state *pod.State, status *v1.PodStatus) {
	o.gateway.SetState(uid, state)
	o.bus.Status(uid, state, status)
}

// Forget reports that nothing of the pod is left.
func (o *PodReporter) Forget(uid types.UID) {
	o.gateway.Forget(uid)
	o.bus.Forget(uid)
	o.prober.Forget(uid)
	o.traces.Forget(uid)
}

func (o *PodReporter) synced() {
	o.bus.PodsComplete()
	o.prober.Complete()
}

func (o *PodReporter) reported() {
	o.gateway.SetComplete()
	o.bus.StatusesComplete()
}

// NodeReporter puts podsync's keys of NODE: the runtime's state, and with the first one all the others.
type NodeReporter struct {
	bus     *publisher.Publisher
	machine Machine
	once    sync.Once
}

// Learn takes an answer of the runtime, or that it has not answered.
func (o *NodeReporter) Learn(r *podsyncv1.Runtime) {
	o.bus.Runtime(r)
	o.once.Do(func() {
		o.bus.Capacity(o.machine.Capacity, o.machine.Allocatable, o.machine.SystemUUID)
		o.bus.NodeComplete()
	})
}
