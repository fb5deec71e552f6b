package criproxy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// maxMessage is above what a runtime answers.
const maxMessage = 16 << 20

// Proxy passes calls on.
type Proxy struct {
	server  *grpc.Server
	runtime *grpc.ClientConn
	served  chan struct{}

	mu   sync.Mutex
	hold *hold
}

// hold is which call is held.
type hold struct {
	wanted func(method string) bool
	number int
	after  bool
	held   chan string
}

// Start listens on a unix socket, and passes calls on to the runtime at another.
func Start(socket, runtime string) (*Proxy, error) {
	if err := os.RemoveAll(socket); err != nil {
		return nil, err
	}
	var listen net.ListenConfig
	l, err := listen.Listen(context.Background(), "unix", socket)
	if err != nil {
		return nil, fmt.Errorf("stand before the runtime: %w", err)
	}
	p := &Proxy{served: make(chan struct{})}
	p.runtime, err = grpc.NewClient("unix://"+runtime, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.ForceCodecV2(raw{}), grpc.MaxCallRecvMsgSize(maxMessage),
			grpc.MaxCallSendMsgSize(maxMessage)))
	if err != nil {
		return nil, errors.Join(fmt.Errorf("stand before the runtime: %w", err), l.Close())
	}
	p.server = grpc.NewServer(grpc.ForceServerCodecV2(raw{}), grpc.UnknownServiceHandler(p.pass),
		grpc.MaxRecvMsgSize(maxMessage), grpc.MaxSendMsgSize(maxMessage))
	go func() {
		defer close(p.served)
		_ = p.server.Serve(l) // it ends by Close alone
	}()
	return p, nil
}

// Close breaks all connections.
func (p *Proxy) Close() error {
	p.server.Stop()
	<-p.served
	return p.runtime.Close()
}

// Hold holds one of the calls that follow: the one of this number, from 1, among those of wanted methods. After means
// that the runtime has done it already. It is held until its caller has gone. The channel gets the name of its method.
// Another Hold, and Release, are in place of it.
func (p *Proxy) Hold(number int, after bool, wanted func(method string) bool) <-chan string {
	h := &hold{wanted, number, after, make(chan string, 1)}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.hold = h
	return h.held
}

// Release holds no further call.
func (p *Proxy) Release() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.hold = nil
}

// counts returns the hold that is of this call.
func (p *Proxy) counts(method string) *hold {
	p.mu.Lock()
	defer p.mu.Unlock()
	h := p.hold
	if h == nil || !h.wanted(method) {
		return nil
	}
	if h.number--; h.number > 0 {
		return nil
	}
	p.hold = nil
	return h
}

// pass passes one call on.
func (p *Proxy) pass(_ any, agent grpc.ServerStream) error {
	ctx := agent.Context()
	full, ok := grpc.MethodFromServerStream(agent)
	if !ok {
		return status.Error(codes.Internal, "a call without a method")
	}
	h := p.counts(path.Base(full))
	wait := func() error {
		h.held <- path.Base(full)
		<-ctx.Done()
		return status.FromContextError(ctx.Err()).Err()
	}
	if h != nil && !h.after {
		return wait()
	}
	if meta, ok := metadata.FromIncomingContext(ctx); ok {
		ctx = metadata.NewOutgoingContext(ctx, meta)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	runtime, err := p.runtime.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, full)
	if err != nil {
		return err
	}
	asked := make(chan error, 1)
	go func() { asked <- ask(agent, runtime) }()
	err = answer(agent, runtime, func() error {
		if h != nil {
			return wait()
		}
		return nil
	})
	cancel()
	<-asked
	return err
}

// ask passes on what the agent says.
func ask(agent grpc.ServerStream, runtime grpc.ClientStream) error {
	for {
		var m message
		switch err := agent.RecvMsg(&m); {
		case errors.Is(err, io.EOF):
			return runtime.CloseSend()
		case err != nil:
			return err
		}
		if err := runtime.SendMsg(&m); err != nil {
			return err
		}
	}
}

// answer passes on what the runtime says. It calls before in front of each message, and of an error.
func answer(agent grpc.ServerStream, runtime grpc.ClientStream, before func() error) error {
	for {
		var m message
		err := runtime.RecvMsg(&m)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if held := before(); held != nil {
			return held
		}
		if err != nil {
			return err
		}
		if err := agent.SendMsg(&m); err != nil {
			return err
		}
	}
}

// message is the bytes of one.
type message struct{ data []byte }

// raw is the codec of messages that nothing looks into.
type raw struct{}

func (raw) Marshal(v any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(v.(*message).data)}, nil
}

func (raw) Unmarshal(data mem.BufferSlice, v any) error {
	v.(*message).data = data.Materialize()
	return nil
}

func (raw) Name() string { return "proto" }
