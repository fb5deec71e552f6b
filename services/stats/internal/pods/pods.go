// Package pods names the pods and containers of the node by what podsync says of them.
//
// It reads the buckets PODS and POD_STATUS. While the bus is down, it uses the last values.
package pods

import (
	"fmt"
	"log/slog"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"

	podsyncv1 "github.com/microlet/microlet/proto/microlet/podsync/v1"
	"github.com/microlet/microlet/proto/subject"
	"github.com/microlet/microlet/services/internal/bus"
	"github.com/microlet/microlet/services/internal/logkey"
)

// Container is a container of a pod, as podsync saw it last.
type Container struct {
	// Name is the container's name in the pod.
	Name string
	// ID has no scheme.
	ID string
	// Image as the pod's status has it.
	Image string
	// Running says that it ran when podsync looked.
	Running bool
	// Started is when the runtime started it; zero if it says nothing.
	Started time.Time
}

// Pod is a pod that podsync has admitted. It is shared: do not change it.
type Pod struct {
	UID, Namespace, Name string
	// SandboxID is empty while there is no sandbox.
	SandboxID  string
	Containers []Container
	// Volumes are those of its spec.
	Volumes []v1.Volume
	// Object is the pod as podsync admitted it, without its status.
	Object *podsyncv1.Pod
}

// source is a bucket as a view of the bus shows it.
type source[M any] interface {
	All() map[string]M
}

// Pods are the node's pods. It is safe for concurrent use.
type Pods struct {
	pods     source[*podsyncv1.Pod]
	statuses source[*podsyncv1.PodStatus]
	log      *slog.Logger

	mu    sync.Mutex
	known map[string]entry
}

// entry is a pod and the messages that it was decoded from: decoding each at every look would be most of its cost.
type entry struct {
	object *podsyncv1.Pod
	status *podsyncv1.PodStatus
	pod    *Pod
}

// Watch returns the pods as the bus has them, once the client runs.
func Watch(c *bus.Client, log *slog.Logger) *Pods {
	return &Pods{
		pods:     bus.Watch[podsyncv1.Pod](c, subject.Pods, ">", nil),
		statuses: bus.Watch[podsyncv1.PodStatus](c, subject.PodStatus, ">", nil),
		log:      log, known: map[string]entry{},
	}
}

// All returns the pods by their UID. One that cannot be read is left out, and logged once.
func (p *Pods) All() map[string]*Pod {
	objects, statuses := p.pods.All(), p.statuses.All()
	all := make(map[string]*Pod, len(objects))
	p.mu.Lock()
	defer p.mu.Unlock()
	for uid := range p.known {
		if objects[uid] == nil {
			delete(p.known, uid)
		}
	}
	for uid, object := range objects {
		status := statuses[uid]
		e, ok := p.known[uid]
		if !ok || e.object != object || e.status != status {
			pod, err := decode(uid, object, status)
			if err != nil {
				p.log.Error("a pod of the bus cannot be read; it has no figures", logkey.Pod, uid, logkey.Err, err)
			}
			e = entry{object, status, pod}
			p.known[uid] = e
		}
		if e.pod != nil {
			all[uid] = e.pod
		}
	}
	return all
}

// decode reads a pod; its status may be absent.
func decode(uid string, object *podsyncv1.Pod, status *podsyncv1.PodStatus) (*Pod, error) {
	var core v1.Pod
	if err := core.Unmarshal(object.GetPod()); err != nil {
		return nil, fmt.Errorf("decode the pod: %w", err)
	}
	var api v1.PodStatus
	if err := api.Unmarshal(status.GetStatus()); err != nil {
		return nil, fmt.Errorf("decode the pod's status: %w", err)
	}
	pod := &Pod{
		UID: uid, Namespace: core.Namespace, Name: core.Name, SandboxID: status.GetSandboxId(),
		Volumes: core.Spec.Volumes, Object: object,
	}
	images := map[string]string{}
	for _, list := range [][]v1.ContainerStatus{
		api.InitContainerStatuses, api.ContainerStatuses, api.EphemeralContainerStatuses,
	} {
		for _, s := range list {
			images[s.Name] = s.Image
		}
	}
	for _, c := range status.GetContainers() {
		container := Container{
			Name: c.GetName(), ID: c.GetId(), Image: images[c.GetName()],
			Running: c.GetState() == podsyncv1.ContainerState_CONTAINER_STATE_RUNNING,
		}
		if c.GetStarted() != nil {
			container.Started = c.GetStarted().AsTime()
		}
		pod.Containers = append(pod.Containers, container)
	}
	return pod, nil
}
