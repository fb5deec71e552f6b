package runtime

import (
	"cmp"
	"context"
	"fmt"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	kubelettypes "k8s.io/kubelet/pkg/types"

	"github.com/microlet/microlet/services/internal/logkey"
	"github.com/microlet/microlet/services/podsync/internal/pod"
)

// known remembers what cannot change any more, by pod and by id.
type known struct {
	mu   sync.Mutex
	pods map[types.UID]*podFacts
}

type podFacts struct {
	sandboxes  map[string]pod.Sandbox
	containers map[string]pod.Container
	// updated is when the resources of containers were changed.
	updated map[string]time.Time
}

// container returns what is known of a container that was listed in this state, if that
// cannot have changed: how it ended, and while it runs all of it until UpdateContainer changes it.
func (f podFacts) container(id string, state runtimeapi.ContainerState) (c pod.Container, final, ok bool) {
	c, ok = f.containers[id]
	final = c.State == runtimeapi.ContainerState_CONTAINER_EXITED
	return c, final, ok && (final || c.State == state)
}

// of returns a copy of the facts of one pod.
func (k *known) of(uid types.UID) podFacts {
	k.mu.Lock()
	defer k.mu.Unlock()
	if f := k.pods[uid]; f != nil {
		return *f
	}
	return podFacts{}
}

// learn replaces the facts of a pod by what its newest state says.
func (k *known) learn(s *pod.State, final map[string]bool) {
	f := &podFacts{sandboxes: map[string]pod.Sandbox{}, containers: map[string]pod.Container{}}
	for _, sb := range s.Sandboxes {
		f.sandboxes[sb.ID] = sb
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	var updated map[string]time.Time
	if before := k.pods[s.UID]; before != nil {
		updated = before.updated
	}
	for _, c := range s.Containers {
		at, wasUpdated := updated[c.ID]
		if wasUpdated {
			f.noteUpdated(c.ID, at)
		}
		if final[c.ID] || c.Running() && !(wasUpdated && !s.Read.After(at)) {
			f.containers[c.ID] = c
		}
	}
	if len(s.Sandboxes)+len(s.Containers) == 0 {
		delete(k.pods, s.UID)
		return
	}
	if k.pods == nil {
		k.pods = map[types.UID]*podFacts{}
	}
	k.pods[s.UID] = f
}

func (f *podFacts) noteUpdated(id string, at time.Time) {
	if f.updated == nil {
		f.updated = map[string]time.Time{}
	}
	f.updated[id] = at
}

// keep forgets every pod that is not in states.
func (k *known) keep(states map[types.UID]*pod.State) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for uid := range k.pods {
		if states[uid] == nil {
			delete(k.pods, uid)
		}
	}
}

// State reads what the runtime has of one pod. A pod of which it has nothing is a State
// with nothing in it, not an error.
func (r *Runtime) State(ctx context.Context, uid types.UID) (*pod.State, error) {
	selector := map[string]string{kubelettypes.KubernetesPodUIDLabel: string(uid)}
	states, err := r.read(ctx, &runtimeapi.PodSandboxFilter{LabelSelector: selector},
		&runtimeapi.ContainerFilter{LabelSelector: selector})
	if err != nil {
		return nil, fmt.Errorf("read the state of pod %s: %w", uid, err)
	}
	if s := states[uid]; s != nil {
		return s, nil
	}
	s := &pod.State{UID: uid, Read: time.Now()}
	r.known.learn(s, nil)
	return s, nil
}

func (r *Runtime) read(ctx context.Context, sf *runtimeapi.PodSandboxFilter,
	cf *runtimeapi.ContainerFilter) (map[types.UID]*pod.State, error) {
	begun := time.Now()
	ctx, cancel := context.WithTimeout(ctx, r.opts.Timeout)
	defer cancel()
	sandboxes, containers, err := r.list(ctx, sf, cf)
	if err != nil {
		return nil, err
	}

	// Each status call fills its own slot; a slot stays nil when the thing was gone.
	fullSandboxes := make([]*pod.Sandbox, len(sandboxes))
	fullContainers := make([]*pod.Container, len(containers))
	final := make([]bool, len(containers))
	calls, callCtx := errgroup.WithContext(ctx)
	calls.SetLimit(r.opts.ReadConcurrency)
	for i, sb := range sandboxes {
		uid := uidOf(sb.GetLabels())
		if uid == "" {
			continue
		}
		if fact, ok := r.known.of(uid).sandboxes[sb.GetId()]; ok && fact.Ready == isReady(sb.GetState()) {
			fullSandboxes[i] = &fact
			continue
		}
		calls.Go(func() (err error) {
			fullSandboxes[i], err = r.sandboxStatus(callCtx, sb.GetId())
			return err
		})
	}
	for i, c := range containers {
		uid := uidOf(c.GetLabels())
		if uid == "" {
			continue
		}
		if fact, ended, ok := r.known.of(uid).container(c.GetId(), c.GetState()); ok {
			fullContainers[i], final[i] = &fact, ended
			continue
		}
		calls.Go(func() (err error) {
			fullContainers[i], final[i], err = r.containerStatus(callCtx, c.GetId(), c.GetPodSandboxId())
			return err
		})
	}
	if err := calls.Wait(); err != nil {
		return nil, err
	}
	return r.assemble(begun, sandboxes, fullSandboxes, containers, fullContainers, final), nil
}

func (r *Runtime) assemble(begun time.Time, sandboxes []*runtimeapi.PodSandbox, fullSandboxes []*pod.Sandbox,
	containers []*runtimeapi.Container, fullContainers []*pod.Container, final []bool) map[types.UID]*pod.State {
	states := map[types.UID]*pod.State{}
	finals := map[string]bool{}
	of := func(labels map[string]string) *pod.State {
		uid := uidOf(labels)
		s := states[uid]
		if s == nil {
			s = &pod.State{
				UID: uid, Name: labels[kubelettypes.KubernetesPodNameLabel],
				Namespace: labels[kubelettypes.KubernetesPodNamespaceLabel], Read: begun,
			}
			states[uid] = s
		}
		return s
	}
	for i, sb := range fullSandboxes {
		if sb != nil {
			s := of(sandboxes[i].GetLabels())
			s.Sandboxes = append(s.Sandboxes, *sb)
		}
	}
	for i, c := range fullContainers {
		if c != nil {
			s := of(containers[i].GetLabels())
			s.Containers = append(s.Containers, *c)
			finals[c.ID] = final[i]
		}
	}
	for _, s := range states {
		newestFirst(s)
		r.known.learn(s, finals)
	}
	return states
}

func uidOf(labels map[string]string) types.UID {
	return types.UID(labels[kubelettypes.KubernetesPodUIDLabel])
}

func isReady(s runtimeapi.PodSandboxState) bool {
	return s == runtimeapi.PodSandboxState_SANDBOX_READY
}

// sandboxStatus returns nil for a sandbox that was removed since it was listed.
func (r *Runtime) sandboxStatus(ctx context.Context, id string) (*pod.Sandbox, error) {
	resp, err := r.cri.PodSandboxStatus(ctx, &runtimeapi.PodSandboxStatusRequest{PodSandboxId: id})
	if IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("status of sandbox %s: %w", id, err)
	}
	st := resp.GetStatus()
	if st.GetId() == "" || st.GetMetadata() == nil || st.GetCreatedAt() == 0 {
		return nil,
			fmt.Errorf("status of sandbox %s: the runtime's answer lacks the id, the metadata or the time of creation",
				id)
	}
	namespaces := st.GetLinux().GetNamespaces().GetOptions()
	sb := &pod.Sandbox{
		ID: st.Id, Ready: isReady(st.State), Created: time.Unix(0, st.CreatedAt), Attempt: st.Metadata.GetAttempt(),
		HostNetwork: namespaces.GetNetwork() == runtimeapi.NamespaceMode_NODE,
		Labels:      st.Labels, Annotations: st.Annotations, Handler: st.RuntimeHandler,
		UserNamespace: namespaces.GetUsernsOptions(),
	}
	if ip := st.GetNetwork().GetIp(); ip != "" && !sb.HostNetwork {
		sb.IPs = append(sb.IPs, ip)
		for _, more := range st.GetNetwork().GetAdditionalIps() {
			sb.IPs = append(sb.IPs, more.GetIp())
		}
	}
	return sb, nil
}

// containerStatus returns nil for a container that was removed since it was listed.
// final says that what it returns cannot change any more.
func (r *Runtime) containerStatus(ctx context.Context, id, sandboxID string) (c *pod.Container, final bool, err error) {
	resp, err := r.cri.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: id})
	if IsNotFound(err) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, fmt.Errorf("status of container %s: %w", id, err)
	}
	st := resp.GetStatus()
	if st.GetId() == "" || st.GetMetadata() == nil || st.GetCreatedAt() == 0 {
		return nil, false,
			fmt.Errorf(
				"status of container %s: the runtime's answer lacks the id, the metadata or the time of creation", id,
			)
	}
	c = &pod.Container{
		ID:          st.Id,
		Name:        cmp.Or(st.Labels[kubelettypes.KubernetesContainerNameLabel], st.Metadata.GetName()),
		SandboxID:   sandboxID,
		State:       st.State,
		Created:     time.Unix(0, st.CreatedAt),
		StopSignal:  st.StopSignal,
		Image:       st.GetImage().GetImage(),
		ImageRef:    st.ImageRef,
		ImageID:     cmp.Or(st.ImageId, st.ImageRef),
		Annotations: st.Annotations,
		LogPath:     st.LogPath,
		Resources:   st.Resources,
		User:        st.User,
		Mounts:      st.Mounts,
	}
	r.annotate(c)
	if st.State != runtimeapi.ContainerState_CONTAINER_CREATED {
		// A container that failed to start has the start time 0; the kubelet shows that
		// as 1970, and so do we.
		c.Started = time.Unix(0, st.StartedAt)
	}
	if st.State == runtimeapi.ContainerState_CONTAINER_EXITED {
		c.Finished, c.ExitCode, c.Reason, c.Message = time.Unix(0, st.FinishedAt), st.ExitCode, st.Reason, st.Message
		message, read := r.terminationMessage(ctx, c)
		switch {
		case message == "":
		case c.Message == "":
			c.Message = message
		default:
			c.Message += ": " + message
		}
		return c, read, nil
	}
	return c, false, nil
}

// annotate reads the kubelet's figures from the annotations. One that is missing or
// broken reads as 0: a container that was not made by a kubelet has a hash that no spec has.
func (r *Runtime) annotate(c *pod.Container) {
	if text, ok := c.Annotations[pod.AnnotationHash]; ok {
		hash, err := strconv.ParseUint(text, 16, 64)
		if err != nil {
			hash = 0 // not the largest, which stands for one out of range
			r.opts.Log.Warn("container has a broken hash annotation", logkey.Container, c.ID, "value", text)
		}
		c.Hash = hash
	}
	if text, ok := c.Annotations[pod.AnnotationRestartCount]; ok {
		count, err := strconv.ParseInt(text, 10, 32)
		if err != nil {
			count = 0
			r.opts.Log.Warn("container has a broken restart count annotation", logkey.Container, c.ID, "value", text)
		}
		c.RestartCount = int32(count)
	}
}
