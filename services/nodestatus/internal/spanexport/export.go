// Package spanexport sends the spans of the node's services to the collector of traces.
//
// It is the only connection of the node agent to the collector, so that no other service needs a network for its
// traces. A service may only send spans of its own. The collector is trusted with nothing: what it answers is bounded,
// and while it is away or hangs, spans wait in a bounded queue.
package spanexport

import (
	"context"
	"fmt"
	"log/slog"
	"slices"

	"github.com/prometheus/client_golang/prometheus"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/services/internal/service"
	"github.com/microlet/microlet/services/internal/spanqueue"
	"github.com/microlet/microlet/services/internal/tracing"
	"github.com/microlet/microlet/services/internal/unixgrpc"
)

const (
	// maxWaiting bounds what waits for the collector, in bytes, and batch what it is sent at once.
	maxWaiting = 4 << 20
	batch      = 1 << 20
	// maxRequest bounds what a service sends at once. It is several times what its spans need.
	maxRequest = 1 << 20
	// maxAnswer bounds the collector's answer.
	maxAnswer = 64 << 10
)

// DefaultEndpoint is OTLP's, as the kubelet's.
const DefaultEndpoint = "localhost:4317"

// request is what a service has sent.
type request struct {
	spans []*tracepb.ResourceSpans
	size  int
}

// Exporter takes spans by gRPC, and sends them once Run runs.
type Exporter struct {
	queue *spanqueue.Queue[request]
	conn  *grpc.ClientConn
}

// Start has nodestatus export the spans of the node's services, if the node traces.
func Start(s *service.Service) error {
	if s.Config.Tracing == nil {
		return nil
	}
	endpoint := DefaultEndpoint
	if e := s.Config.Tracing.Endpoint; e != nil && *e != "" {
		endpoint = *e
	}
	e, err := New(endpoint, s.Log, s.Metrics)
	if err != nil {
		return err
	}
	e.Register(s.GRPC)
	s.Allow(tracing.ExportMethod, Senders()...)
	s.Go("span export", e.Run)
	return nil
}

// New returns an exporter to an endpoint. It does not connect.
func New(endpoint string, log *slog.Logger, metrics prometheus.Registerer) (*Exporter, error) {
	conn, err := grpc.NewClient(endpoint,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxAnswer)),
		grpc.WithDisableServiceConfig(),
		grpc.WithUserAgent("microlet-nodestatus"))
	if err != nil {
		return nil, fmt.Errorf("tracing.endpoint %q: %w: give host:port, or unix:///path", endpoint, err)
	}
	e := &Exporter{conn: conn}
	e.queue, err = spanqueue.New(spanqueue.Options[request]{
		To:   "collector",
		Size: func(r request) int { return r.size }, Spans: func(r request) int { return count(r.spans) },
		Limit: maxWaiting, Batch: batch, Send: e.send, Log: log, Metrics: metrics,
	})
	return e, err
}

// Run sends until ctx ends, and closes the connection.
func (e *Exporter) Run(ctx context.Context) error {
	defer e.conn.Close()
	return e.queue.Run(ctx)
}

func (e *Exporter) send(ctx context.Context, requests []request) error {
	all := &tracepb.TracesData{}
	for _, r := range requests {
		all.ResourceSpans = append(all.ResourceSpans, r.spans...)
	}
	// Nothing is done about what the collector says it has not taken.
	return e.conn.Invoke(ctx, tracing.ExportMethod, all, &emptypb.Empty{})
}

// Register serves OTLP's trace service to the node's services.
func (e *Exporter) Register(s grpc.ServiceRegistrar) { s.RegisterService(&description, e) }

// description is that of OTLP's trace service. Its generated code would bring an HTTP gateway into every process.
// TracesData has the same encoding as ExportTraceServiceRequest, and an empty message that of an answer without
// complaint.
var description = grpc.ServiceDesc{
	ServiceName: tracing.ExportService,
	HandlerType: (*any)(nil),
	Methods: []grpc.MethodDesc{{MethodName: "Export", Handler: func(e any, ctx context.Context, decode func(any) error,
		_ grpc.UnaryServerInterceptor) (any, error) {
		spans := &tracepb.TracesData{}
		if err := decode(spans); err != nil {
			return nil, err
		}
		return &emptypb.Empty{}, e.(*Exporter).take(ctx, spans)
	}}},
}

// take takes what a service sends, if it is the service's own.
func (e *Exporter) take(ctx context.Context, data *tracepb.TracesData) error {
	size := proto.Size(data)
	if size > maxRequest {
		return status.Errorf(codes.InvalidArgument, "the spans have %d bytes, and at most %d are taken", size, maxRequest)
	}
	p, _ := unixgrpc.PeerOf(ctx)
	for _, spans := range data.GetResourceSpans() {
		if name := serviceName(spans); !slices.Contains(p.Roles, role.Role(name)) {
			return status.Errorf(codes.PermissionDenied, "%s may not send spans of %q", p, name)
		}
	}
	if !e.queue.Add(request{data.GetResourceSpans(), size}) {
		return status.Error(codes.ResourceExhausted, "too many spans wait for the collector")
	}
	return nil
}

func serviceName(spans *tracepb.ResourceSpans) string {
	for _, a := range spans.GetResource().GetAttributes() {
		if a.GetKey() == tracing.ServiceName {
			return a.GetValue().GetStringValue()
		}
	}
	return ""
}

func count(spans []*tracepb.ResourceSpans) int {
	n := 0
	for _, of := range spans {
		for _, in := range of.GetScopeSpans() {
			n += len(in.GetSpans())
		}
	}
	return n
}

// Senders are the services that may send spans.
func Senders() []role.Role {
	return slices.DeleteFunc(role.All(), func(r role.Role) bool { return r == role.Bus || r == role.Up })
}
