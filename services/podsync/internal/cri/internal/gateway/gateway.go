package gateway

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/services/internal/crilist"
	"github.com/microlet/microlet/services/internal/tracing"
	"github.com/microlet/microlet/services/internal/unixgrpc"
)

// stopGrace is how long calls may go on when the gateway stops. Event streams never end
// by themselves, so they are what it cuts.
const stopGrace = time.Second

// maxMessage is the largest CRI message, as the kubelet's.
const maxMessage = 16 << 20

// maxRequest is how many bytes a request of a service may have. The largest is one with a probe's command, and a pod
// that etcd takes has less than this as a whole.
const maxRequest = 2 << 20

// streamWorkers is how many calls of one role need no goroutine of their own. The stack of such a goroutine would grow
// again with each call on its way through gRPC.
const streamWorkers = 8

// Options of a Gateway.
type Options struct {
	// Runtime and Image lead to the runtime's two services. Required.
	Runtime, Image grpc.ClientConnInterface
	// Lists reads the runtime's lists, of which streams are made. Required.
	Lists *crilist.Lister
	// Timeout of a call that brings no deadline and does not wait by nature. 0 is 2 m.
	Timeout time.Duration
	// Peers say which processes have the roles of their user.
	Peers unixgrpc.Rules
	// Containers are those of the node's pods, by which commands and checkpoints are allowed. Required.
	Containers Containers
	// Checkpoints is the folder for containers' checkpoints, absolute and clean. Empty allows none.
	Checkpoints string
	Log         *slog.Logger
	// Metrics are registered here; nil registers none.
	Metrics prometheus.Registerer
	// Tracer continues the traces of callers; nil does not.
	Tracer *tracing.Tracer
}

// Gateway passes CRI calls on. It is safe for concurrent use.
type Gateway struct {
	opts          Options
	joiner        *joiner
	calls, denied *prometheus.CounterVec
	places        map[role.Role]places

	mu       sync.Mutex
	logged   map[string]time.Time // when a refusal was logged last, by role, method and reason
	commands map[string]int       // of probes that run, by container
}

// New checks the options and returns a gateway that serves no caller yet.
func New(opts Options) (*Gateway, error) {
	if opts.Runtime == nil || opts.Image == nil {
		return nil, errors.New("the CRI gateway needs connections to the runtime's both services")
	}
	if opts.Lists == nil {
		return nil, errors.New("the CRI gateway needs the runtime's lists")
	}
	if opts.Containers == nil {
		return nil, errors.New("the CRI gateway needs to know the pods' containers")
	}
	if opts.Checkpoints != "" &&
		(!filepath.IsAbs(opts.Checkpoints) || filepath.Clean(opts.Checkpoints) != opts.Checkpoints) {
		return nil, fmt.Errorf("the CRI gateway's folder for checkpoints is %q: give an absolute path without \"..\"",
			opts.Checkpoints)
	}
	if opts.Timeout < 0 {
		return nil, fmt.Errorf("the CRI gateway's timeout %s must not be negative; 0 is 2m", opts.Timeout)
	}
	if opts.Timeout == 0 {
		opts.Timeout = 2 * time.Minute
	}
	if opts.Log == nil {
		opts.Log = slog.Default()
	}
	g := &Gateway{
		opts: opts, joiner: newJoiner(defaultPatience, opts.Timeout), logged: map[string]time.Time{},
		places: map[role.Role]places{}, commands: map[string]int{},
		calls: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "microlet_cri_gateway_calls_total",
			Help: "Calls that services made through the CRI gateway, denied ones included.",
		}, []string{"role", "method", "code"}),
		denied: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "microlet_cri_gateway_denied_total",
			Help: "Calls that the CRI gateway denied, by reason: a method that the role does not have, or what the " +
				"request asks for.",
		}, []string{"role", "method", "reason"}),
	}
	for _, r := range Roles() {
		g.places[r] = newPlaces()
	}
	if opts.Metrics != nil {
		if err := errors.Join(opts.Metrics.Register(g.calls), opts.Metrics.Register(g.denied)); err != nil {
			return nil, fmt.Errorf("register metrics of the CRI gateway: %w", err)
		}
	}
	return g, nil
}

// Run serves every listener as its role's socket until ctx ends, then waits until no
// call is left. Its error is the first of a listener that broke; it ends the others. It
// closes the listeners, which must be unixgrpc's.
func (g *Gateway) Run(ctx context.Context, listeners map[role.Role]net.Listener) error {
	// A shared call belongs to no single caller, so it is waited for here.
	defer g.joiner.wg.Wait()
	group, ctx := errgroup.WithContext(ctx)
	for r, l := range listeners {
		group.Go(func() error { return g.serve(ctx, r, l) })
	}
	return group.Wait()
}

func (g *Gateway) serve(ctx context.Context, r role.Role, l net.Listener) error {
	s := g.server(r)
	stopped := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(stopped)
		cut := time.AfterFunc(stopGrace, s.Stop)
		defer cut.Stop()
		s.GracefulStop()
	})
	err := s.Serve(l)
	if !stop() {
		<-stopped
	}
	s.Stop()
	if err != nil && ctx.Err() == nil {
		return fmt.Errorf("serve CRI for %s: %w", r, err)
	}
	return nil
}

// server returns the gRPC server of one role's socket.
func (g *Gateway) server(r role.Role) *grpc.Server {
	// Every caller that may connect reaches every method's handler, which then asks the table, so that a refusal can name
	// role and method.
	policy := unixgrpc.NewPolicy(nil)
	for _, d := range descriptions {
		for _, name := range methodNames(d) {
			policy.Allow("/"+d.ServiceName+"/"+name, r, role.Podsync, role.Up)
		}
	}
	s := unixgrpc.NewServer(unixgrpc.ServerOptions{
		Policy:  policy,
		Log:     g.opts.Log,
		Metrics: g.opts.Metrics,
		Peers:   g.opts.Peers,

		MaxRequest: maxRequest,
	}, append(g.opts.Tracer.ServerOptions(),
		grpc.ForceServerCodecV2(frameCodec{}), grpc.NumStreamWorkers(streamWorkers),
		grpc.StatsHandler(connections{}))...)
	for _, d := range descriptions {
		s.RegisterService(g.describe(r, d), nil)
	}
	return s
}

func methodNames(d *grpc.ServiceDesc) []string {
	var names []string
	for _, m := range d.Methods {
		names = append(names, m.MethodName)
	}
	for _, m := range d.Streams {
		names = append(names, m.StreamName)
	}
	return names
}

// describe returns a service like d with methods that pass on what comes.
func (g *Gateway) describe(r role.Role, d *grpc.ServiceDesc) *grpc.ServiceDesc {
	conn := g.opts.Runtime
	if d.ServiceName == runtimeapi.ImageService_ServiceDesc.ServiceName {
		conn = g.opts.Image
	}
	own := &grpc.ServiceDesc{ServiceName: d.ServiceName, Metadata: d.Metadata}
	for _, m := range d.Methods {
		full := "/" + d.ServiceName + "/" + m.MethodName
		own.Methods = append(own.Methods, grpc.MethodDesc{MethodName: m.MethodName, Handler: g.unary(r, conn, full)})
	}
	for _, m := range d.Streams {
		full := "/" + d.ServiceName + "/" + m.StreamName
		own.Streams = append(own.Streams, grpc.StreamDesc{
			StreamName: m.StreamName, ServerStreams: m.ServerStreams, ClientStreams: m.ClientStreams,
			Handler: g.stream(r, conn, full,
				grpc.StreamDesc{
					StreamName:    m.StreamName,
					ServerStreams: m.ServerStreams,
					ClientStreams: m.ClientStreams,
				}),
		})
	}
	return own
}

func (g *Gateway) count(r role.Role, method string, err error) {
	g.calls.WithLabelValues(string(r), nameOf(method), status.Code(err).String()).Inc()
}

// answer is what came back of a unary call.
type answer struct {
	message         frame
	header, trailer metadata.MD
}

// ask has the runtime answer a unary call of a role, together with others that ask the same.
func (g *Gateway) ask(ctx context.Context, conn grpc.ClientConnInterface, r role.Role, method string,
	request *frame) (answer, error) {
	send := func(ctx context.Context) (answer, error) {
		a := answer{message: frame{short: shortened[r][nameOf(method)]}}
		err := conn.Invoke(outgoing(ctx), method, request, &a.message, grpc.ForceCodecV2(frameCodec{}),
			grpc.Header(&a.header), grpc.Trailer(&a.trailer), grpc.MaxCallRecvMsgSize(maxMessage),
			grpc.MaxCallSendMsgSize(maxMessage))
		return a, err
	}
	if joins(nameOf(method)) {
		return g.joiner.do(ctx, method+"\x00"+string(request.data), send)
	}
	return send(ctx)
}

type unaryHandler = func(srv any, ctx context.Context, decode func(any) error,
	interceptor grpc.UnaryServerInterceptor) (any, error)

func (g *Gateway) unary(r role.Role, conn grpc.ClientConnInterface, method string) unaryHandler {
	name := nameOf(method)
	call := func(ctx context.Context, req any) (any, error) {
		if err := g.mayCall(ctx, r, method); err != nil {
			return nil, err
		}
		request, ok := req.(*frame)
		if !ok {
			return nil, status.Errorf(codes.Internal, "the request is a %T", req)
		}
		var err error
		if request.data, err = g.mayAsk(ctx, r, method, request.data); err != nil {
			return nil, err
		}
		ctx, cancel := g.bound(ctx, name)
		defer cancel()
		leaveContainer, err := g.enterContainer(r, name, request.data)
		if err != nil {
			return nil, err
		}
		defer leaveContainer()
		leave, err := g.enter(ctx, r, name)
		if err != nil {
			return nil, err
		}
		a, err := g.ask(ctx, conn, r, method, request)
		// What the runtime says beside its answer is passed on as far as it can be; the
		// only error is that the caller is gone, whom then nothing reaches.
		_ = grpc.SetHeader(ctx, passed(a.header))
		_ = grpc.SetTrailer(ctx, passed(a.trailer))
		if err != nil {
			leave()
			return nil, asStatus(err)
		}
		a.message.off = leave
		return &a.message, nil
	}
	return func(srv any, ctx context.Context, decode func(any) error,
		interceptor grpc.UnaryServerInterceptor) (any, error) {
		request := &frame{}
		if err := decode(request); err != nil {
			return nil, err
		}
		answer := call
		if interceptor != nil {
			answer = func(ctx context.Context, request any) (any, error) {
				return interceptor(ctx, request, &grpc.UnaryServerInfo{Server: srv, FullMethod: method}, call)
			}
		}
		reply, err := answer(ctx, request)
		g.count(r, method, err)
		return reply, err
	}
}

// bound gives a call a deadline, unless its caller has or it waits by nature.
func (g *Gateway) bound(ctx context.Context, method string) (context.Context, context.CancelFunc) {
	if _, ok := ctx.Deadline(); ok || slices.Contains(patient, method) {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, g.opts.Timeout)
}

// stream passes a server's stream on: one request, then answers until it ends.
func (g *Gateway) stream(r role.Role, conn grpc.ClientConnInterface, method string,
	desc grpc.StreamDesc) grpc.StreamHandler {
	list := ownStreams[nameOf(method)]
	return func(_ any, in grpc.ServerStream) (err error) {
		defer func() { g.count(r, method, err) }()
		if err := g.mayCall(in.Context(), r, method); err != nil {
			return err
		}
		request := &frame{}
		if err := in.RecvMsg(request); err != nil {
			return err
		}
		if request.data, err = g.mayAsk(in.Context(), r, method, request.data); err != nil {
			return err
		}
		// The call to the runtime ends with this one, also when the caller went away.
		ctx, cancel := context.WithCancel(outgoing(in.Context()))
		defer cancel()
		leave, err := g.enter(ctx, r, nameOf(method))
		if err != nil {
			return err
		}
		defer leave()
		if list != nil {
			return g.sendList(ctx, in, list, request.data)
		}
		out, err := conn.NewStream(ctx, &desc, method, grpc.ForceCodecV2(frameCodec{}),
			grpc.MaxCallRecvMsgSize(maxMessage), grpc.MaxCallSendMsgSize(maxMessage))
		if err != nil {
			return asStatus(err)
		}
		if err := errors.Join(out.SendMsg(request), out.CloseSend()); err != nil && !errors.Is(err, io.EOF) {
			return asStatus(err)
		}
		next := func() (*frame, error) {
			message := &frame{}
			return message, out.RecvMsg(message)
		}
		if nameOf(method) == events {
			next = readAhead(out, cancel)
		}
		for first := true; ; first = false {
			message, err := next()
			if header, headerErr := out.Header(); first && headerErr == nil {
				_ = in.SetHeader(passed(header)) // as with unary calls
			}
			if errors.Is(err, io.EOF) {
				in.SetTrailer(passed(out.Trailer()))
				return nil
			}
			if err != nil {
				in.SetTrailer(passed(out.Trailer()))
				return asStatus(err)
			}
			if err := in.SendMsg(message); err != nil {
				return err
			}
		}
	}
}

// outgoing makes the metadata that came with a call go on with it.
func outgoing(ctx context.Context) context.Context {
	md, ok := metadata.FromIncomingContext(ctx)
	if !ok {
		return ctx
	}
	return metadata.NewOutgoingContext(ctx, passed(md))
}

// passed returns the metadata without what belongs to one connection.
func passed(md metadata.MD) metadata.MD {
	clean := metadata.MD{}
	for k, v := range md {
		if strings.HasPrefix(k, ":") || strings.HasPrefix(k, "grpc-") || k == "content-type" || k == "user-agent" ||
			k == "te" {
			continue
		}
		clean[k] = v
	}
	return clean
}

// asStatus keeps the runtime's code and words; what is not a status is a context's end.
func asStatus(err error) error {
	if s, ok := status.FromError(err); ok {
		return s.Err()
	}
	return status.FromContextError(err).Err()
}
