package gateway

import (
	"context"
	"slices"
	"strings"
	"sync"

	"golang.org/x/time/rate"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	grpcstats "google.golang.org/grpc/stats"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/microlet/microlet/proto/role"
)

// How many answers of a kind a role has at one time, from the question to the runtime until the last byte is off.
// Further calls of the role wait. A list may have 16 MiB, and a caller that does not read what it has asked for would
// have podsync keep as many as it asks for.
const (
	listsAtOnce   = 4
	callsAtOnce   = 64
	streamsAtOnce = 4 // of events: one, and those of predecessors that do not end
)

// How many lists a role has in a second, and at once. pleg has two, and nodeapi one for each command or log. A list of
// all containers has the runtime and podsync compute for some milliseconds.
const (
	listsASecond = 100
	listsBurst   = 200
)

// places are those of one role.
type places struct {
	lists, calls, streams chan struct{}
	pace                  *rate.Limiter // of lists
}

func newPlaces() places {
	return places{
		make(chan struct{}, listsAtOnce), make(chan struct{}, callsAtOnce), make(chan struct{}, streamsAtOnce),
		rate.NewLimiter(listsASecond, listsBurst),
	}
}

// of returns the places for a method. Calls that wait by nature need none: the commands of one pod could take all of
// them for hours. Those of the prober have some in each container (see enterContainer).
func (p places) of(method string) chan struct{} {
	switch {
	case slices.Contains(patient, method):
		return nil
	case method == events:
		return p.streams
	case joins(method) || strings.HasPrefix(method, "Stream"):
		return p.lists
	}
	return p.calls
}

// enter waits for a place. leave gives it back; more than once is harmless.
func (g *Gateway) enter(ctx context.Context, r role.Role, method string) (leave func(), err error) {
	place := g.places[r].of(method)
	if place == nil {
		return func() {}, nil
	}
	if place == g.places[r].lists {
		if err := g.places[r].pace.Wait(ctx); err != nil {
			return nil, status.Errorf(codes.ResourceExhausted, "role %s asks for more than %d lists a second: %v", r,
				listsASecond, err)
		}
	}
	select {
	case place <- struct{}{}:
		free := sync.OnceFunc(func() { <-place })
		stop := context.AfterFunc(connectionOf(ctx), free)
		return func() { stop(); free() }, nil
	case <-ctx.Done():
		err := status.FromContextError(ctx.Err())
		return nil, status.Errorf(err.Code(), "%d calls of role %s are not answered, or their answers not read: %s",
			cap(place), r, err.Message())
	}
}

// commandsAtOnce is how many commands of probes may run in a container at one time: twice as many as one prober has,
// since two may have the pod for a moment. The runtime and podsync keep 16 MiB of what each prints until it ends.
const commandsAtOnce = 4

// enterContainer takes one of these places, or says that there is none.
func (g *Gateway) enterContainer(r role.Role, method string, request []byte) (leave func(), err error) {
	if r != role.Prober || method != "ExecSync" {
		return func() {}, nil
	}
	var q runtimeapi.ExecSyncRequest
	if err := proto.Unmarshal(request, &q); err != nil {
		return nil, status.Errorf(codes.Internal, "decode the request: %v", err)
	}
	id := q.GetContainerId()
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.commands[id] >= commandsAtOnce {
		return nil, status.Errorf(codes.ResourceExhausted, "%d commands of probes run in container %s already",
			commandsAtOnce, id)
	}
	g.commands[id]++
	return func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		if g.commands[id]--; g.commands[id] == 0 {
			delete(g.commands, id)
		}
	}, nil
}

// connection is the key of a call's context for the context that ends with its connection.
type connection struct{}

// connections have each call know when its connection ends: gRPC does not give back what it drops with one.
type connections struct{}

var _ grpcstats.Handler = connections{}

type liveConnection struct {
	context.Context
	end context.CancelFunc
}

// TagConn implements stats.Handler.
func (connections) TagConn(ctx context.Context, _ *grpcstats.ConnTagInfo) context.Context {
	c := &liveConnection{}
	c.Context, c.end = context.WithCancel(context.Background())
	return context.WithValue(ctx, connection{}, c)
}

// HandleConn implements stats.Handler.
func (connections) HandleConn(ctx context.Context, s grpcstats.ConnStats) {
	if c, ok := ctx.Value(connection{}).(*liveConnection); ok {
		if _, is := s.(*grpcstats.ConnEnd); is {
			c.end()
		}
	}
}

// connectionOf is what ends with the connection of a call.
func connectionOf(ctx context.Context) context.Context {
	if c, ok := ctx.Value(connection{}).(*liveConnection); ok {
		return c
	}
	return context.Background()
}

// TagRPC implements stats.Handler.
func (connections) TagRPC(ctx context.Context, _ *grpcstats.RPCTagInfo) context.Context { return ctx }

// HandleRPC implements stats.Handler.
func (connections) HandleRPC(context.Context, grpcstats.RPCStats) {}

// held is the pool that gRPC gives a message back to when it is off, or its call has ended.
type held struct{ off func() }

var _ mem.BufferPool = (*held)(nil)

// hold returns data as a buffer of gRPC that calls off at its end.
func hold(data []byte, off func()) mem.Buffer {
	if mem.IsBelowBufferPoolingThreshold(cap(data)) { // gRPC does not give it back, and it is small
		off()
		return mem.SliceBuffer(data)
	}
	return mem.NewBuffer(&data, &held{off})
}

// Get implements mem.BufferPool.
func (*held) Get(length int) *[]byte { return new(make([]byte, length)) }

// Put implements mem.BufferPool.
func (h *held) Put(*[]byte) { h.off() }
