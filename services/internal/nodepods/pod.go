package nodepods

import (
	"fmt"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	podsyncv1 "github.com/microlet/microlet/proto/microlet/podsync/v1"
	"github.com/microlet/microlet/services/internal/podutil"
)

// Pod is a pod that podsync knows. It is shared: do not change it.
type Pod struct {
	// Pod is the object as podsync has it, with the resources that the node has granted. It is never nil. Its status is
	// what podsync reports or, before podsync has reported one, what the object came with.
	*v1.Pod
	// Desired is the object with the resources that its source asks for. It is Pod if these are granted.
	Desired *v1.Pod
	// Terminating says that podsync terminates the pod, or has terminated it: no container of it starts any more.
	Terminating bool
	// Reported says that podsync has reported a status. Before that, the fields below are empty.
	Reported bool
	// SandboxID is empty while there is no sandbox.
	SandboxID string
	// IPs are the pod's own, the first one the primary.
	IPs []string
	// Containers are those that the runtime has or had, the newest of each name.
	Containers []Container
	// Err is why the pod or its status cannot be decoded. If it is the pod, Pod has nothing but the UID.
	Err error
}

// Container is a container of a pod, as podsync saw it last.
type Container struct {
	Name string
	// ID has no scheme.
	ID string
	// Image is the image as the pod's status names it.
	Image string
	State podsyncv1.ContainerState
	// Started is when the runtime started it; zero if that is not known.
	Started time.Time
}

// States of a container.
const (
	Created = podsyncv1.ContainerState_CONTAINER_STATE_CREATED
	Running = podsyncv1.ContainerState_CONTAINER_STATE_RUNNING
	Exited  = podsyncv1.ContainerState_CONTAINER_STATE_EXITED
	Unknown = podsyncv1.ContainerState_CONTAINER_STATE_UNKNOWN
)

// IsRunning reports whether the container ran when podsync looked.
func (c *Container) IsRunning() bool { return c.State == Running }

// entry is an entry of PODS.
type entry struct {
	pod *v1.Pod
	// desired is nil if it is pod.
	desired     *v1.Pod
	terminating bool
	err         error
}

// decodePod fails only if the entry is not a message of its bucket.
func decodePod(uid string, value []byte) (*entry, error) {
	var m podsyncv1.Pod
	if err := proto.Unmarshal(value, &m); err != nil {
		return nil, err
	}
	e := &entry{pod: &v1.Pod{}, terminating: m.GetTerminating()}
	if err := e.pod.Unmarshal(m.GetPod()); err != nil {
		e.pod = &v1.Pod{ObjectMeta: metav1.ObjectMeta{UID: types.UID(uid)}}
		e.err = fmt.Errorf("decode pod %s of the bus: %w", uid, err)
	}
	if len(m.GetDesired()) == 0 || e.err != nil {
		return e, nil
	}
	var spec v1.PodSpec
	if err := spec.Unmarshal(m.GetDesired()); err != nil {
		e.pod = &v1.Pod{ObjectMeta: metav1.ObjectMeta{UID: types.UID(uid)}}
		e.err = fmt.Errorf("decode the resources that pod %s of the bus asks for: %w", uid, err)
		return e, nil
	}
	e.desired = asking(e.pod, &spec)
	return e, nil
}

// asking is the pod with the resources of a spec.
func asking(p *v1.Pod, spec *v1.PodSpec) *v1.Pod {
	with := *p
	with.Spec.Resources = spec.Resources
	replace := func(list, by []v1.Container) []v1.Container {
		asked := make(map[string]*v1.ResourceRequirements, len(by))
		for i := range by {
			asked[by[i].Name] = &by[i].Resources
		}
		list = slices.Clone(list)
		for i := range list {
			if r := asked[list[i].Name]; r != nil {
				list[i].Resources = *r
			}
		}
		return list
	}
	with.Spec.InitContainers = replace(p.Spec.InitContainers, spec.InitContainers)
	with.Spec.Containers = replace(p.Spec.Containers, spec.Containers)
	return &with
}

// report is an entry of POD_STATUS.
type report struct {
	status     v1.PodStatus
	sandboxID  string
	ips        []string
	containers []Container
	err        error
}

// decodeStatus fails only if the entry is not a message of its bucket.
func decodeStatus(uid string, value []byte) (*report, error) {
	var m podsyncv1.PodStatus
	if err := proto.Unmarshal(value, &m); err != nil {
		return nil, err
	}
	r := &report{sandboxID: m.GetSandboxId(), ips: m.GetPodIps()}
	if err := r.status.Unmarshal(m.GetStatus()); err != nil {
		r.status, r.err = v1.PodStatus{}, fmt.Errorf("decode the status of pod %s of the bus: %w", uid, err)
	}
	statuses := slices.Concat(r.status.InitContainerStatuses, r.status.ContainerStatuses,
		r.status.EphemeralContainerStatuses)
	for _, c := range m.GetContainers() {
		container := Container{Name: c.GetName(), ID: c.GetId(), State: c.GetState()}
		if s := podutil.ContainerStatus(statuses, c.GetName()); s != nil {
			container.Image = s.Image
		}
		if c.GetStarted() != nil {
			container.Started = c.GetStarted().AsTime()
		}
		r.containers = append(r.containers, container)
	}
	return r, nil
}

func withStatus(p *v1.Pod, s v1.PodStatus) *v1.Pod {
	object := *p
	object.Status = s
	return &object
}

// join makes a Pod of its entries; r is nil before podsync has reported a status.
func join(e *entry, r *report) *Pod {
	p := &Pod{Pod: e.pod, Desired: e.pod, Terminating: e.terminating, Err: e.err}
	if e.desired != nil {
		p.Desired = e.desired
	}
	if r == nil {
		return p
	}
	p.SandboxID, p.IPs, p.Containers = r.sandboxID, r.ips, r.containers
	switch {
	case p.Err != nil:
	case r.err != nil:
		p.Err = r.err
	default:
		p.Pod, p.Reported = withStatus(e.pod, r.status), true
		p.Desired = p.Pod
		if e.desired != nil {
			p.Desired = withStatus(e.desired, r.status)
		}
	}
	return p
}
