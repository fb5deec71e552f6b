package runtime

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	kubelettypes "k8s.io/kubelet/pkg/types"

	"github.com/microlet/microlet/services/internal/crilist"
	"github.com/microlet/microlet/services/podsync/internal/pod"
)

// List returns what the runtime's two lists say about every pod that carries the kubelet's label: ids,
// names, ages, labels, annotations and whether something runs. Addresses, exits, images and
// log paths are left out, because each of them would take a call of its own: State has them.
func (r *Runtime) List(ctx context.Context) (map[types.UID]*pod.State, error) {
	begun := time.Now()
	sandboxes, containers, err := r.list(ctx, nil, nil)
	if err != nil {
		return nil, err
	}
	states := map[types.UID]*pod.State{}
	of := func(labels map[string]string) *pod.State {
		uid := uidOf(labels)
		if states[uid] == nil {
			states[uid] = &pod.State{
				UID: uid, Name: labels[kubelettypes.KubernetesPodNameLabel],
				Namespace: labels[kubelettypes.KubernetesPodNamespaceLabel], Read: begun,
			}
		}
		return states[uid]
	}
	for _, sb := range sandboxes {
		if uidOf(sb.GetLabels()) == "" {
			continue
		}
		s := of(sb.GetLabels())
		s.Sandboxes = append(s.Sandboxes, pod.Sandbox{
			ID:          sb.GetId(),
			Ready:       isReady(sb.GetState()),
			Created:     time.Unix(0, sb.GetCreatedAt()),
			Attempt:     sb.GetMetadata().GetAttempt(),
			Labels:      sb.GetLabels(),
			Annotations: sb.GetAnnotations(),
			Handler:     sb.GetRuntimeHandler(),
		})
	}
	for _, c := range containers {
		if uidOf(c.GetLabels()) == "" {
			continue
		}
		s := of(c.GetLabels())
		listed := pod.Container{
			ID:          c.GetId(),
			Name:        cmp.Or(c.GetLabels()[kubelettypes.KubernetesContainerNameLabel], c.GetMetadata().GetName()),
			SandboxID:   c.GetPodSandboxId(),
			State:       c.GetState(),
			Created:     time.Unix(0, c.GetCreatedAt()),
			Annotations: c.GetAnnotations(),
		}
		r.annotate(&listed)
		s.Containers = append(s.Containers, listed)
	}
	for _, s := range states {
		newestFirst(s)
	}
	r.known.keep(states)
	return states, nil
}

// list reads the two lists, at the same time.
func (r *Runtime) list(ctx context.Context, sf *runtimeapi.PodSandboxFilter, cf *runtimeapi.ContainerFilter) (
	sandboxes []*runtimeapi.PodSandbox, containers []*runtimeapi.Container, err error) {
	ctx, cancel := context.WithTimeout(ctx, r.opts.Timeout)
	defer cancel()
	lists, ctx := errgroup.WithContext(ctx)
	lists.Go(func() (err error) {
		if sandboxes, err = crilist.Collect(r.lists.Sandboxes(ctx, sf)); err != nil {
			return fmt.Errorf("list sandboxes: %w", err)
		}
		return nil
	})
	lists.Go(func() (err error) {
		if containers, err = crilist.Collect(r.lists.Containers(ctx, cf)); err != nil {
			return fmt.Errorf("list containers: %w", err)
		}
		return nil
	})
	err = lists.Wait() // before the lists are read
	return sandboxes, containers, err
}

// newestFirst goes by what counts the instances: the clock may have been set back between two of them.
func newestFirst(s *pod.State) {
	slices.SortFunc(s.Sandboxes, func(a, b pod.Sandbox) int {
		return cmp.Or(cmp.Compare(b.Attempt, a.Attempt), b.Created.Compare(a.Created), cmp.Compare(a.ID, b.ID))
	})
	slices.SortFunc(s.Containers, func(a, b pod.Container) int {
		return cmp.Or(cmp.Compare(b.RestartCount, a.RestartCount), b.Created.Compare(a.Created),
			cmp.Compare(a.ID, b.ID))
	})
}

// LogPath returns where the runtime writes a container's log; empty if it writes none. It
// never changes.
func (r *Runtime) LogPath(ctx context.Context, id string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, r.opts.Timeout)
	defer cancel()
	resp, err := r.cri.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: id})
	if err != nil {
		return "", fmt.Errorf("status of container %s: %w", id, err)
	}
	return resp.GetStatus().GetLogPath(), nil
}

// ReopenContainerLog makes the runtime write a container's log into a new file at its log
// path, after the old one was moved away. Only a running container has a log to reopen.
func (r *Runtime) ReopenContainerLog(ctx context.Context, id string) error {
	ctx, cancel := context.WithTimeout(ctx, r.opts.Timeout)
	defer cancel()
	if _, err := r.cri.ReopenContainerLog(ctx, &runtimeapi.ReopenContainerLogRequest{ContainerId: id}); err != nil {
		return fmt.Errorf("reopen the log of container %s: %w", id, err)
	}
	return nil
}
