// Package publisher writes PODS, POD_STATUS and podsync's keys of NODE to the bus.
//
// It puts an entry only on change, and never waits for the bus. Package bus repeats a put that failed when the bus
// is back.
package publisher

import (
	"fmt"
	"log/slog"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	podsyncv1 "github.com/microlet/microlet/proto/microlet/podsync/v1"
	"github.com/microlet/microlet/proto/subject"
	"github.com/microlet/microlet/services/internal/logkey"
	"github.com/microlet/microlet/services/internal/nodeinfo"
	"github.com/microlet/microlet/services/internal/podtrace"
	"github.com/microlet/microlet/services/internal/podutil"
	"github.com/microlet/microlet/services/podsync/internal/pod"
)

// Writer is this service's share of one bucket; see bus.Writer.
type Writer interface {
	Put(key string, m proto.Message)
	PutTraced(key string, m proto.Message, traceparent string)
	Delete(key string)
	Complete()
}

// Publisher writes what podsync knows of pods and of the runtime.
type Publisher struct {
	pods, statuses, node Writer
	traces               *podtrace.Traces
	log                  *slog.Logger
}

// New returns a Publisher over the three buckets that podsync writes. What it says of a pod's status is in the pod's
// trace, if there is one.
func New(pods, statuses, node Writer, traces *podtrace.Traces, log *slog.Logger) *Publisher {
	return &Publisher{pods: pods, statuses: statuses, node: node, traces: traces, log: log}
}

// Pod publishes a pod that a source wants, with the resources that are granted. desired is the pod with those that it
// asks for.
func (p *Publisher) Pod(api, desired *v1.Pod, source podsyncv1.PodSource, terminating bool) {
	m := &podsyncv1.Pod{Source: source, Terminating: terminating}
	var err error
	if m.Pod, err = api.Marshal(); err != nil {
		p.log.Error("pod not published", logkey.PodUID, api.UID, logkey.Err, fmt.Errorf("marshal: %w", err))
		return
	}
	if asked := pod.ResourcesOf(desired); !asked.Equal(pod.ResourcesOf(api)) {
		spec := resourcesAlone(&desired.Spec)
		if m.Desired, err = spec.Marshal(); err != nil {
			p.log.Error("the resources that a pod asks for are not published", logkey.PodUID, api.UID,
				logkey.Err, fmt.Errorf("marshal: %w", err))
		}
	}
	p.pods.Put(subject.PodKey(string(api.UID)), m)
}

// resourcesAlone is a spec with nothing but resources and the names of containers.
func resourcesAlone(spec *v1.PodSpec) *v1.PodSpec {
	alone := func(containers []v1.Container) (list []v1.Container) {
		for i := range containers {
			list = append(list, v1.Container{Name: containers[i].Name, Resources: containers[i].Resources})
		}
		return list
	}
	return &v1.PodSpec{
		Resources: spec.Resources, InitContainers: alone(spec.InitContainers), Containers: alone(spec.Containers),
	}
}

// maxEnded is how large the status of a pod may be that is put whole when it has ended: as many pods as the API server
// has may wait for their deletion.
const maxEnded = 64 << 10

// Status puts what runs of a pod and what its status says.
func (p *Publisher) Status(uid types.UID, state *pod.State, status *v1.PodStatus) {
	if podutil.IsTerminal(status.Phase) && status.Size() > maxEnded {
		state = &pod.State{}
		status = &v1.PodStatus{Phase: status.Phase, Reason: status.Reason, QOSClass: status.QOSClass,
			StartTime: status.StartTime}
	}
	body, err := status.Marshal()
	if err != nil {
		p.log.Error("pod status not published", logkey.PodUID, uid, logkey.Err, fmt.Errorf("marshal: %w", err))
		return
	}
	m := &podsyncv1.PodStatus{Status: body}
	if len(state.Sandboxes) > 0 {
		m.SandboxId = state.Sandboxes[0].ID
	}
	for _, ip := range status.PodIPs {
		m.PodIps = append(m.PodIps, ip.IP)
	}
	seen := map[string]bool{}
	for i := range state.Containers { // newest first: one entry a name
		c := &state.Containers[i]
		if seen[c.Name] {
			continue
		}
		seen[c.Name] = true
		m.Containers = append(m.Containers, container(c))
	}
	p.statuses.PutTraced(subject.PodKey(string(uid)), m, p.traces.Of(uid).String())
}

// Forget deletes a pod's entries: it is gone from its source and from the node.
func (p *Publisher) Forget(uid types.UID) {
	p.pods.Delete(subject.PodKey(string(uid)))
	p.statuses.Delete(subject.PodKey(string(uid)))
}

// PodsComplete reports that every pod of the sources has been put, so that pods that an
// earlier podsync left may go.
func (p *Publisher) PodsComplete() { p.pods.Complete() }

// StatusesComplete says the same of the pods' statuses, which are known later: readers
// keep what an earlier podsync said until then.
func (p *Publisher) StatusesComplete() { p.statuses.Complete() }

// Runtime puts what the runtime said of itself.
func (p *Publisher) Runtime(m *podsyncv1.Runtime) { p.node.Put(subject.NodeRuntime, m) }

// Capacity puts what the node has.
func (p *Publisher) Capacity(capacity, allocatable v1.ResourceList, systemUUID string) {
	p.node.Put(subject.NodeCapacity, nodeinfo.Message(capacity, allocatable, systemUUID))
}

// CSIDrivers puts what CSI drivers say of the node.
func (p *Publisher) CSIDrivers(m *podsyncv1.CSIDrivers) { p.node.Put(subject.NodeCSI, m) }

// Volumes puts which volumes are in use.
func (p *Publisher) Volumes(m *podsyncv1.Volumes) { p.node.Put(subject.NodeVolumes, m) }

// NodeComplete reports that podsync's keys of NODE are all put.
func (p *Publisher) NodeComplete() { p.node.Complete() }

var states = map[runtimeapi.ContainerState]podsyncv1.ContainerState{
	runtimeapi.ContainerState_CONTAINER_CREATED: podsyncv1.ContainerState_CONTAINER_STATE_CREATED,
	runtimeapi.ContainerState_CONTAINER_RUNNING: podsyncv1.ContainerState_CONTAINER_STATE_RUNNING,
	runtimeapi.ContainerState_CONTAINER_EXITED:  podsyncv1.ContainerState_CONTAINER_STATE_EXITED,
	runtimeapi.ContainerState_CONTAINER_UNKNOWN: podsyncv1.ContainerState_CONTAINER_STATE_UNKNOWN,
}

func container(c *pod.Container) *podsyncv1.Container {
	m := &podsyncv1.Container{Name: c.Name, Id: c.ID, State: states[c.State], RestartCount: c.RestartCount}
	if !c.Started.IsZero() {
		m.Started = timestamppb.New(c.Started)
	}
	return m
}
