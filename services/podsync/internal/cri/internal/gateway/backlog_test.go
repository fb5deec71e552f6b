package gateway

import (
	"context"
	"errors"
	"io"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/microlet/microlet/proto/role"
)

// eventful is a runtime with events of this size, and this many for each caller.
type eventful struct {
	grpc.ClientConnInterface
	size, number int

	streams, ended, read *atomic.Int64
}

func newEventful(size, number int) eventful {
	return eventful{size: size, number: number, streams: new(atomic.Int64), ended: new(atomic.Int64),
		read: new(atomic.Int64)}
}

func (e eventful) NewStream(ctx context.Context, _ *grpc.StreamDesc, _ string,
	_ ...grpc.CallOption) (grpc.ClientStream, error) {
	e.streams.Add(1)
	context.AfterFunc(ctx, func() { e.ended.Add(1) })
	return &eventStream{runtime: e, ctx: ctx}, nil
}

type eventStream struct {
	grpc.ClientStream
	runtime eventful
	ctx     context.Context
	read    int
}

func (s *eventStream) Header() (metadata.MD, error) { return nil, nil }
func (s *eventStream) Trailer() metadata.MD         { return nil }
func (s *eventStream) CloseSend() error             { return nil }
func (s *eventStream) SendMsg(any) error            { return nil }

func (s *eventStream) RecvMsg(m any) (err error) {
	if s.ctx.Err() != nil {
		return status.FromContextError(s.ctx.Err()).Err()
	}
	if s.read == s.runtime.number {
		return io.EOF
	}
	m.(*frame).data, err = proto.Marshal(&runtimeapi.ContainerEventResponse{
		ContainerId: strings.Repeat("x", s.runtime.size) + strconv.Itoa(s.read),
	})
	s.read++
	s.runtime.read.Add(1)
	return err
}

// endless is the number of events of a runtime that always has one more.
const endless = -1

// TestEventsThatAreNotRead: containerd waits for a follower of its events that does not read them, and so does each
// call that starts, stops or removes a container.
func TestEventsThatAreNotRead(t *testing.T) {
	for name, size := range map[string]int{"many": 1 << 10, "large": 4 << 20} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, anyone)
			runtime := newEventful(size, endless)
			b.passed.ClientConnInterface = runtime
			unread(t, b, role.PLEG, events, &runtimeapi.GetEventsRequest{})
			waitUntil(t, "the runtime's stream ends", func() bool { return runtime.ended.Load() == 1 })
			if n := int(runtime.read.Load()); n > 2*maxBacklog || n*size > 2*maxBacklogBytes {
				t.Errorf("%d events of %d bytes are kept", n, size)
			}
		})
	}
}

// TestManyEventStreams: a caller has podsync keep the events of few streams at one time.
func TestManyEventStreams(t *testing.T) {
	b := newBench(t, anyone)
	runtime := newEventful(1<<10, endless)
	b.passed.ClientConnInterface = runtime
	var leave []func()
	for range 2 * streamsAtOnce {
		leave = append(leave, unread(t, b, role.PLEG, events, &runtimeapi.GetEventsRequest{}))
	}
	waitUntil(t, "streams have too many events", func() bool { return runtime.ended.Load() == streamsAtOnce })
	if n := runtime.streams.Load(); n != streamsAtOnce {
		t.Errorf("%d streams are open", n)
	}
	for _, l := range leave {
		l()
	}
	before := runtime.streams.Load()
	unread(t, b, role.PLEG, events, &runtimeapi.GetEventsRequest{})
	waitUntil(t, "there is one after the others were given up", func() bool { return runtime.streams.Load() > before })
}

// TestEventsReachWhoReadsThem in their order, and then the end of the runtime's stream.
func TestEventsReachWhoReadsThem(t *testing.T) {
	const number = maxBacklog
	b := newBench(t, anyone)
	b.passed.ClientConnInterface = newEventful(16, number)
	stream, err := runtimeapi.NewRuntimeServiceClient(b.byRole[role.PLEG]).GetContainerEvents(t.Context(),
		&runtimeapi.GetEventsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for n := 0; ; n++ {
		e, err := stream.Recv()
		if errors.Is(err, io.EOF) && n == number {
			return
		}
		if want := strings.Repeat("x", 16) + strconv.Itoa(n); err != nil || e.GetContainerId() != want {
			t.Fatalf("event %d is %q, %v", n, e.GetContainerId(), err)
		}
	}
}
