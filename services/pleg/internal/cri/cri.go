// Package cri reads the lists and the event stream of the runtime through the CRI gateway.
package cri

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	kubelettypes "k8s.io/kubelet/pkg/types"

	"github.com/microlet/microlet/services/internal/crilist"
	"github.com/microlet/microlet/services/pleg/internal/relist"
)

// Runtime reads the runtime over one connection.
type Runtime struct {
	client runtimeapi.RuntimeServiceClient
	lists  *crilist.Lister
}

var (
	_ relist.Lister   = (*Runtime)(nil)
	_ relist.Streamer = (*Runtime)(nil)
)

// New returns a Runtime over conn, which the caller closes.
func New(conn grpc.ClientConnInterface, o crilist.Options) *Runtime {
	return &Runtime{client: runtimeapi.NewRuntimeServiceClient(conn), lists: crilist.New(conn, conn, o)}
}

// List lists every sandbox and container. The two lists are two calls: if a sandbox comes between them, its container
// is found by the pod label.
func (r *Runtime) List(ctx context.Context) (relist.Snapshot, error) {
	return snapshot(r.lists.Sandboxes(ctx, nil), r.lists.Containers(ctx, nil))
}

func snapshot(sandboxes iter.Seq2[*runtimeapi.PodSandbox, error],
	containers iter.Seq2[*runtimeapi.Container, error]) (relist.Snapshot, error) {
	s, podOf := relist.Snapshot{}, map[string]string{}
	for sb, err := range sandboxes {
		if err != nil {
			return nil, fmt.Errorf("list sandboxes: %w", err)
		}
		uid := sb.GetMetadata().GetUid()
		if uid == "" {
			continue // not a pod of Kubernetes
		}
		podOf[sb.GetId()] = uid
		state := relist.Exited
		if sb.GetState() == runtimeapi.PodSandboxState_SANDBOX_READY {
			state = relist.Running
		}
		s.Add(uid, sb.GetId(), relist.Item{State: state, Sandbox: true, Attempt: sb.GetMetadata().GetAttempt()})
	}
	for c, err := range containers {
		if err != nil {
			return nil, fmt.Errorf("list containers: %w", err)
		}
		uid := podOf[c.GetPodSandboxId()]
		if uid == "" {
			uid = c.GetLabels()[kubelettypes.KubernetesPodUIDLabel]
		}
		if uid == "" {
			continue
		}
		s.Add(uid, c.GetId(), relist.Item{
			State: containerState(c.GetState()), Name: c.GetMetadata().GetName(), Attempt: c.GetMetadata().GetAttempt(),
		})
	}
	return s, nil
}

func containerState(s runtimeapi.ContainerState) relist.State {
	switch s {
	case runtimeapi.ContainerState_CONTAINER_CREATED:
		return relist.Created
	case runtimeapi.ContainerState_CONTAINER_RUNNING:
		return relist.Running
	case runtimeapi.ContainerState_CONTAINER_EXITED:
		return relist.Exited
	default:
		return relist.Unknown
	}
}

// Stream follows GetContainerEvents. It has no deadline: it lasts as long as ctx and the runtime
// allow, and the relist finds out when it hangs.
func (r *Runtime) Stream(ctx context.Context, opened func(), event func(relist.StreamEvent)) error {
	stream, err := r.client.GetContainerEvents(ctx, &runtimeapi.GetEventsRequest{})
	if err != nil {
		return streamError(err)
	}
	opened()
	for events := 0; ; events++ {
		ev, err := stream.Recv()
		if events == 0 && errors.Is(err, io.EOF) { // as CRI-O answers without enable_pod_events
			return fmt.Errorf("%w: it ended without an event", relist.ErrNoStream)
		}
		if err != nil {
			return streamError(err)
		}
		event(streamEvent(ev))
	}
}

func streamError(err error) error {
	if status.Code(err) == codes.Unimplemented {
		return fmt.Errorf("%w: %w", relist.ErrNoStream, err)
	}
	return fmt.Errorf("container events: %w", err)
}

func streamEvent(ev *runtimeapi.ContainerEventResponse) relist.StreamEvent {
	out := relist.StreamEvent{ID: ev.GetContainerId(), PodUID: ev.GetPodSandboxStatus().GetMetadata().GetUid()}
	if ns := ev.GetCreatedAt(); ns > 0 {
		out.Created = time.Unix(0, ns)
	}
	switch ev.GetContainerEventType() {
	case runtimeapi.ContainerEventType_CONTAINER_STARTED_EVENT:
		out.Kind = relist.StreamStarted
	case runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT:
		out.Kind = relist.StreamStopped
	case runtimeapi.ContainerEventType_CONTAINER_DELETED_EVENT:
		out.Kind = relist.StreamDeleted
	default:
		out.Kind = relist.StreamCreated
	}
	return out
}
