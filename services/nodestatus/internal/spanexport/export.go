// Package spanexport passes the spans of the node's services on to the collector of traces.
//
// It is the only connection of the node agent to the collector, so that no other service needs a network for its
// traces. A service may only send spans of its own. It is answered when the collector has answered, and keeps its spans
// until then, so that none is lost with nodestatus. The collector is trusted with nothing: what it answers is bounded.
package spanexport

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"

	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/services/internal/service"
	"github.com/microlet/microlet/services/internal/tracing"
	"github.com/microlet/microlet/services/internal/unixgrpc"
)

const (
	// maxCalls bounds the calls of one service that wait for the collector. A replica makes one at a time.
	maxCalls = 4
	// maxRequest bounds what a call sends, in bytes. It is several times what its spans need.
	maxRequest = 512 << 10
	// maxAnswer and maxHeaders bound the collector's answer, and maxText what of its error goes on.
	maxAnswer  = 64 << 10
	maxHeaders = 16 << 10
	maxText    = 1 << 10
)

// DefaultEndpoint is OTLP's, as the kubelet's.
const DefaultEndpoint = "localhost:4317"

// Exporter takes spans by gRPC.
type Exporter struct {
	conn *grpc.ClientConn
	// places are those of calls, by their service.
	places map[role.Role]chan struct{}
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
	e, err := New(endpoint)
	if err != nil {
		return err
	}
	e.Register(s.GRPC)
	s.Allow(tracing.ExportMethod, Senders()...)
	s.Go("span export", e.Run)
	return nil
}

// New returns an exporter to an endpoint. It does not connect.
func New(endpoint string) (*Exporter, error) {
	conn, err := grpc.NewClient(endpoint,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxAnswer)),
		grpc.WithMaxHeaderListSize(maxHeaders),
		grpc.WithDisableServiceConfig(),
		grpc.WithUserAgent("microlet-nodestatus"))
	if err == nil && !hasAddress(conn.CanonicalTarget()) {
		err = errors.Join(errors.New("it names no address"), conn.Close())
	}
	if err != nil {
		return nil, fmt.Errorf("tracing.endpoint %q: %w: give host:port, or unix:///path", endpoint, err)
	}
	e := &Exporter{conn: conn, places: map[role.Role]chan struct{}{}}
	for _, r := range Senders() {
		e.places[r] = make(chan struct{}, maxCalls)
	}
	return e, nil
}

// hasAddress reports whether a target of gRPC says where to connect. gRPC itself complains at each call only.
// Source: https://github.com/grpc/grpc/blob/master/doc/naming.md
func hasAddress(target string) bool {
	u, err := url.Parse(target)
	if err != nil || strings.HasPrefix(u.Scheme, "unix") && u.Host != "" {
		return false
	}
	return strings.Trim(u.Path, "/:") != ""
}

// Run closes the connection when ctx ends.
func (e *Exporter) Run(ctx context.Context) error {
	<-ctx.Done()
	return e.conn.Close()
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
		// Decoded, spans without content take fifty times what they take on the wire.
		leave, err := e.(*Exporter).enter(ctx)
		if err != nil {
			return nil, err
		}
		defer leave()
		spans := &tracepb.TracesData{}
		if err := decode(spans); err != nil {
			return nil, err
		}
		return &emptypb.Empty{}, e.(*Exporter).export(ctx, spans)
	}}},
}

// export passes on what a service sends, if it is the service's own.
func (e *Exporter) export(ctx context.Context, data *tracepb.TracesData) error {
	if size := proto.Size(data); size > maxRequest {
		return status.Errorf(codes.InvalidArgument, "the spans have %d bytes, and at most %d are taken", size, maxRequest)
	}
	p, _ := unixgrpc.PeerOf(ctx)
	for _, spans := range data.GetResourceSpans() {
		if r := sender(spans); !slices.Contains(p.Roles, r) {
			return status.Errorf(codes.PermissionDenied, "%s may not send spans of %q", p, r)
		}
	}
	// Nothing is done about single spans that the collector says it has not taken.
	if err := e.conn.Invoke(ctx, tracing.ExportMethod, data, &emptypb.Empty{}); err != nil {
		text := status.Convert(err).Message()
		return status.Error(status.Code(err), "collector: "+strings.ToValidUTF8(text[:min(len(text), maxText)], ""))
	}
	return nil
}

// enter gives the call of a service a place.
func (e *Exporter) enter(ctx context.Context) (leave func(), err error) {
	p, _ := unixgrpc.PeerOf(ctx)
	for _, r := range p.Roles { // root has more than one, of which one sends
		places := e.places[r]
		if places == nil {
			continue
		}
		select {
		case places <- struct{}{}:
			return func() { <-places }, nil
		default:
			return nil, status.Errorf(codes.ResourceExhausted, "%d calls of %s wait for the collector", maxCalls, p)
		}
	}
	return nil, status.Errorf(codes.PermissionDenied, "%s sends no spans", p)
}

// sender is the service that spans say they are of; none if they name not exactly one.
func sender(spans *tracepb.ResourceSpans) role.Role {
	var names []string
	for _, a := range spans.GetResource().GetAttributes() {
		if a.GetKey() == tracing.ServiceName {
			names = append(names, a.GetValue().GetStringValue())
		}
	}
	if len(names) != 1 {
		return ""
	}
	return role.Role(names[0])
}

// Senders are the services that may send spans.
func Senders() []role.Role {
	return slices.DeleteFunc(role.All(), func(r role.Role) bool { return r == role.Bus || r == role.Up })
}
