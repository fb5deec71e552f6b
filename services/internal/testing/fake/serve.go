package fake

import (
	"context"
	"fmt"
	"net"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// maxAnswer is the largest message that the runtime sends, as containerd's by default.
const maxAnswer = 16 << 20

// Serve serves the runtime on a new unix socket at path, or on any other listener by
// ServeOn, until stop is called. stop breaks open calls, as the end of a runtime does,
// and returns when they are gone; the runtime's state stays and can be served again.
func (r *Runtime) Serve(path string) (stop func(), err error) {
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, fmt.Errorf("listen for the fake runtime: %w", err)
	}
	return r.ServeOn(l), nil
}

// ServeOn is Serve on a listener, which it closes at the end.
func (r *Runtime) ServeOn(l net.Listener) (stop func()) {
	s := grpc.NewServer(grpc.ChainUnaryInterceptor(r.unary), grpc.ChainStreamInterceptor(r.stream),
		grpc.MaxRecvMsgSize(16<<20), grpc.MaxSendMsgSize(maxAnswer))
	runtimeapi.RegisterRuntimeServiceServer(s, r)
	runtimeapi.RegisterImageServiceServer(s, &r.images)
	done := make(chan struct{})
	go func() {
		defer close(done)
		// Serve's only error after Stop is that it was stopped; before, the tests see a
		// connection that does not answer.
		_ = s.Serve(l)
	}()
	return func() {
		s.Stop()
		<-done
	}
}

// Conn returns a connection to the runtime that has no transport: a call runs on the
// caller's goroutine. It knows unary calls only.
func (r *Runtime) Conn() grpc.ClientConnInterface { return direct{r} }

type direct struct{ r *Runtime }

// Invoke implements grpc.ClientConnInterface.
func (d direct) Invoke(ctx context.Context, method string, args, reply any, _ ...grpc.CallOption) error {
	service, name, _ := strings.Cut(strings.TrimPrefix(method, "/"), "/")
	for _, s := range []struct {
		desc *grpc.ServiceDesc
		impl any
	}{{&runtimeapi.RuntimeService_ServiceDesc, d.r}, {&runtimeapi.ImageService_ServiceDesc, &d.r.images}} {
		if s.desc.ServiceName != service {
			continue
		}
		for _, m := range s.desc.Methods {
			if m.MethodName != name {
				continue
			}
			resp, err := m.Handler(s.impl, ctx, func(in any) error {
				proto.Merge(in.(proto.Message), args.(proto.Message))
				return nil
			}, d.r.unary)
			if err != nil {
				return asStatus(err)
			}
			if size := proto.Size(resp.(proto.Message)); size > maxAnswer {
				return status.Errorf(codes.ResourceExhausted, "trying to send message larger than max (%d vs. %d)", size,
					maxAnswer)
			}
			proto.Merge(reply.(proto.Message), resp.(proto.Message))
			return nil
		}
	}
	return status.Errorf(codes.Unimplemented, "method %s not implemented", method)
}

// asStatus turns an error into what it would be after the wire.
func asStatus(err error) error {
	if s, ok := status.FromError(err); ok {
		return s.Err()
	}
	return status.FromContextError(err).Err()
}

// NewStream implements grpc.ClientConnInterface.
func (d direct) NewStream(_ context.Context, _ *grpc.StreamDesc, method string,
	_ ...grpc.CallOption) (grpc.ClientStream, error) {
	return nil, status.Errorf(codes.Unimplemented, "method %s needs a connection: use Serve", method)
}
