package fake

import (
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// eventBuffer is how many events a slow reader of the stream may be behind before it
// misses some, as readers of a real runtime do.
const eventBuffer = 1000

type eventHub struct {
	mu   sync.Mutex
	subs map[chan *runtimeapi.ContainerEventResponse]struct{}
	mute bool
}

// emit sends to every reader of the event stream. The caller holds the runtime's mu, so
// that events are in the order of what happened.
func (r *Runtime) emit(id string, s *sandbox, kind runtimeapi.ContainerEventType) {
	ev := &runtimeapi.ContainerEventResponse{ContainerId: id, ContainerEventType: kind, CreatedAt: r.now().UnixNano()}
	if s != nil {
		ev.PodSandboxStatus = s.status()
		for _, c := range r.sorted() {
			if c.sandboxID == s.id {
				ev.ContainersStatuses = append(ev.ContainersStatuses, c.status())
			}
		}
	}
	r.events.mu.Lock()
	defer r.events.mu.Unlock()
	if r.events.mute {
		return
	}
	for sub := range r.events.subs {
		select {
		case sub <- ev:
		default:
		}
	}
}

// MuteEvents makes the event stream silent without ending it: what a stream that has
// hung looks like to its reader.
func (r *Runtime) MuteEvents(mute bool) {
	r.events.mu.Lock()
	defer r.events.mu.Unlock()
	r.events.mute = mute
}

// CloseEvents ends every open event stream with an error.
func (r *Runtime) CloseEvents() {
	r.events.mu.Lock()
	defer r.events.mu.Unlock()
	for sub := range r.events.subs {
		close(sub)
		delete(r.events.subs, sub)
	}
}

// EventStreams returns how many event streams are open.
func (r *Runtime) EventStreams() int {
	r.events.mu.Lock()
	defer r.events.mu.Unlock()
	return len(r.events.subs)
}

// GetContainerEvents implements CRI.
func (r *Runtime) GetContainerEvents(_ *runtimeapi.GetEventsRequest,
	out grpc.ServerStreamingServer[runtimeapi.ContainerEventResponse]) error {
	if r.crio {
		return nil
	}
	sub := make(chan *runtimeapi.ContainerEventResponse, eventBuffer)
	r.events.mu.Lock()
	if r.events.subs == nil {
		r.events.subs = map[chan *runtimeapi.ContainerEventResponse]struct{}{}
	}
	r.events.subs[sub] = struct{}{}
	r.events.mu.Unlock()
	defer func() {
		r.events.mu.Lock()
		defer r.events.mu.Unlock()
		delete(r.events.subs, sub)
	}()
	for {
		select {
		case ev, ok := <-sub:
			if !ok {
				return status.Error(codes.Unavailable, "event stream closed")
			}
			if err := out.Send(ev); err != nil {
				return err
			}
		case <-out.Context().Done():
			return out.Context().Err()
		}
	}
}
