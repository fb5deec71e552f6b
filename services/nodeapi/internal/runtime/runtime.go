// Package runtime calls the container runtime through the CRI gateway, with the role nodeapi.
//
// It returns the addresses at which the runtime serves streams, the log file of a container, and the running
// containers. So the bytes of a stream pass only through nodeapi. Every call has a deadline. All readers of the log
// of one container together cost the runtime one status call per second.
//
// The labels that a container was created with say which pod it belongs to. Callers are authorized for the name of a
// pod, so the labels must have this name, whatever UID or container ID the bus says that the pod has.
package runtime

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"time"

	"golang.org/x/sync/singleflight"
	"google.golang.org/grpc"
	"k8s.io/apimachinery/pkg/util/cache"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	kubelettypes "k8s.io/kubelet/pkg/types"

	"github.com/microlet/microlet/services/internal/crilist"
)

const (
	// statusAge is how old a container's status may be: as long as a reader of logs waits anyway
	// between two looks at a file that does not grow.
	statusAge = time.Second
	// keptStatuses bounds what is kept of them.
	keptStatuses = 1024
)

// What does not run cannot be talked to. The words are the kubelet's.
var (
	ErrNoContainer = errors.New("container not found")
	ErrNoSandbox   = errors.New("pod not found: it has no sandbox that is ready")
)

// Runtime is the runtime's part that nodeapi may use. It is safe for concurrent use.
type Runtime struct {
	client   runtimeapi.RuntimeServiceClient
	lists    *crilist.Lister
	timeout  time.Duration
	statuses *cache.LRUExpireCache
	flight   singleflight.Group
}

// New returns the runtime behind the connection; timeout bounds each call that does not wait by
// nature.
func New(conn grpc.ClientConnInterface, o crilist.Options, timeout time.Duration) *Runtime {
	return &Runtime{
		client: runtimeapi.NewRuntimeServiceClient(conn), lists: crilist.New(conn, conn, o), timeout: timeout,
		statuses: cache.NewLRUExpireCache(keptStatuses),
	}
}

// Stream says which streams of a process are wanted.
type Stream struct{ Stdin, Stdout, Stderr, TTY bool }

// Pod is the pod that the container or sandbox must belong to: the one for which the caller was authorized.
type Pod struct{ Namespace, Name, UID string }

// labels are those of the pod's sandboxes.
func (p Pod) labels() map[string]string {
	return map[string]string{
		kubelettypes.KubernetesPodNamespaceLabel: p.Namespace,
		kubelettypes.KubernetesPodNameLabel:      p.Name,
		kubelettypes.KubernetesPodUIDLabel:       p.UID,
	}
}

// Container returns the labels of the pod's containers of this name.
func (p Pod) Container(name string) map[string]string {
	all := p.labels()
	all[kubelettypes.KubernetesContainerNameLabel] = name
	return all
}

// Container returns the id of the pod's running container of this name, the newest if there are more. It
// is ErrNoContainer if there is none.
func (r *Runtime) Container(ctx context.Context, pod Pod, name string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, r.timeout)
	defer cancel()
	containers, err := crilist.Collect(r.lists.Containers(ctx, &runtimeapi.ContainerFilter{
		State:         &runtimeapi.ContainerStateValue{State: runtimeapi.ContainerState_CONTAINER_RUNNING},
		LabelSelector: pod.Container(name),
	}))
	if err != nil {
		return "", err
	}
	if len(containers) == 0 {
		return "", fmt.Errorf("%w (%q)", ErrNoContainer, name)
	}
	return slices.MaxFunc(containers, func(a, b *runtimeapi.Container) int {
		return int(min(max(a.GetCreatedAt()-b.GetCreatedAt(), -1), 1))
	}).GetId(), nil
}

// Sandbox returns the id of the pod's ready sandbox, the newest if there are more. It is
// ErrNoSandbox if there is none.
func (r *Runtime) Sandbox(ctx context.Context, pod Pod) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, r.timeout)
	defer cancel()
	sandboxes, err := crilist.Collect(r.lists.Sandboxes(ctx, &runtimeapi.PodSandboxFilter{
		State:         &runtimeapi.PodSandboxStateValue{State: runtimeapi.PodSandboxState_SANDBOX_READY},
		LabelSelector: pod.labels(),
	}))
	if err != nil {
		return "", err
	}
	if len(sandboxes) == 0 {
		return "", ErrNoSandbox
	}
	return slices.MaxFunc(sandboxes, func(a, b *runtimeapi.PodSandbox) int {
		return int(min(max(a.GetCreatedAt()-b.GetCreatedAt(), -1), 1))
	}).GetId(), nil
}

// Exec returns where the runtime will serve the streams of a command in a container.
func (r *Runtime) Exec(ctx context.Context, container string, command []string, s Stream) (*url.URL, error) {
	ctx, cancel := context.WithTimeout(ctx, r.timeout)
	defer cancel()
	answer, err := r.client.Exec(ctx, &runtimeapi.ExecRequest{
		ContainerId: container, Cmd: command, Tty: s.TTY, Stdin: s.Stdin, Stdout: s.Stdout, Stderr: s.Stderr,
	})
	if err != nil {
		return nil, err
	}
	return address(answer.GetUrl())
}

// Attach returns where the runtime will serve the streams of a container's main process.
func (r *Runtime) Attach(ctx context.Context, container string, s Stream) (*url.URL, error) {
	ctx, cancel := context.WithTimeout(ctx, r.timeout)
	defer cancel()
	answer, err := r.client.Attach(ctx, &runtimeapi.AttachRequest{
		ContainerId: container, Tty: s.TTY, Stdin: s.Stdin, Stdout: s.Stdout, Stderr: s.Stderr,
	})
	if err != nil {
		return nil, err
	}
	return address(answer.GetUrl())
}

// PortForward returns where the runtime will serve connections to the sandbox's ports.
func (r *Runtime) PortForward(ctx context.Context, sandbox string, ports []int32) (*url.URL, error) {
	ctx, cancel := context.WithTimeout(ctx, r.timeout)
	defer cancel()
	answer, err := r.client.PortForward(ctx, &runtimeapi.PortForwardRequest{PodSandboxId: sandbox, Port: ports})
	if err != nil {
		return nil, err
	}
	return address(answer.GetUrl())
}

func address(text string) (*url.URL, error) {
	u, err := url.Parse(text)
	if err != nil {
		return nil, fmt.Errorf("the runtime's streaming address: %w", err)
	}
	if u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return nil, fmt.Errorf("the runtime's streaming address %q is no http address of a host", text)
	}
	return u, nil
}

// Run runs a command in a container to its end and returns what it wrote, standard output first.
// The caller's context is its only deadline.
func (r *Runtime) Run(ctx context.Context, container string, command []string) ([]byte, error) {
	answer, err := r.client.ExecSync(ctx, &runtimeapi.ExecSyncRequest{ContainerId: container, Cmd: command})
	if err != nil {
		return nil, err
	}
	out := append(answer.GetStdout(), answer.GetStderr()...)
	if code := answer.GetExitCode(); code != 0 {
		return out, fmt.Errorf("command %q exited with %d: %s", command, code, answer.GetStderr())
	}
	return out, nil
}

// Checkpoint writes a container's checkpoint to a file, which the runtime makes. Timeout 0 is the
// runtime's own.
func (r *Runtime) Checkpoint(ctx context.Context, container, file string, timeout time.Duration) error {
	_, err := r.client.CheckpointContainer(ctx, &runtimeapi.CheckpointContainerRequest{
		ContainerId: container, Location: file, Timeout: int64(timeout / time.Second),
	})
	return err
}

// Status returns a container's status of at most a second ago. It is shared: do not change it.
func (r *Runtime) Status(ctx context.Context, id string) (*runtimeapi.ContainerStatusResponse, error) {
	if kept, ok := r.statuses.Get(id); ok {
		return kept.(*runtimeapi.ContainerStatusResponse), nil
	}
	shared := r.flight.DoChan(id, func() (any, error) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), r.timeout)
		defer cancel()
		answer, err := r.client.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: id})
		if err == nil {
			r.statuses.Add(id, answer, statusAge)
		}
		return answer, err
	})
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case answer := <-shared:
		if answer.Err != nil {
			return nil, answer.Err
		}
		return answer.Val.(*runtimeapi.ContainerStatusResponse), nil
	}
}

// Running is a pod as the runtime has it.
type Running struct {
	Namespace, Name, UID string
	Containers           []*runtimeapi.Container
}

// Pods returns what runs, podsync's or not, by the sandboxes' labels.
func (r *Runtime) Pods(ctx context.Context) ([]Running, error) {
	ctx, cancel := context.WithTimeout(ctx, r.timeout)
	defer cancel()
	pods := map[string]*Running{}
	for s, err := range r.lists.Sandboxes(ctx, &runtimeapi.PodSandboxFilter{
		State: &runtimeapi.PodSandboxStateValue{State: runtimeapi.PodSandboxState_SANDBOX_READY},
	}) {
		if err != nil {
			return nil, err
		}
		m := s.GetMetadata()
		pods[m.GetUid()] = &Running{Namespace: m.GetNamespace(), Name: m.GetName(), UID: m.GetUid()}
	}
	for c, err := range r.lists.Containers(ctx, &runtimeapi.ContainerFilter{
		State: &runtimeapi.ContainerStateValue{State: runtimeapi.ContainerState_CONTAINER_RUNNING},
	}) {
		if err != nil {
			return nil, err
		}
		uid := c.GetLabels()[kubelettypes.KubernetesPodUIDLabel]
		if uid == "" {
			continue // it was not made for Kubernetes
		}
		p := pods[uid]
		if p == nil { // its sandbox is not ready any more
			p = &Running{
				Namespace: c.GetLabels()[kubelettypes.KubernetesPodNamespaceLabel],
				Name:      c.GetLabels()[kubelettypes.KubernetesPodNameLabel],
				UID:       uid,
			}
			pods[uid] = p
		}
		p.Containers = append(p.Containers, c)
	}
	list := make([]Running, 0, len(pods))
	for _, p := range pods {
		list = append(list, *p)
	}
	slices.SortFunc(list, func(a, b Running) int {
		return slices.Compare([]string{a.Namespace, a.Name, a.UID}, []string{b.Namespace, b.Name, b.UID})
	})
	return list, nil
}
