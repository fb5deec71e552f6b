package spanexport

import (
	"context"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	coltracepb "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	resourcepb "go.opentelemetry.io/proto/otlp/resource/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/services/internal/service"
	"github.com/microlet/microlet/services/internal/testing/proctest"
	"github.com/microlet/microlet/services/internal/tracing"
	"github.com/microlet/microlet/services/internal/unixgrpc"
)

// collector is one of OTLP's own making.
type collector struct {
	coltracepb.UnimplementedTraceServiceServer
	got    chan *coltracepb.ExportTraceServiceRequest
	answer func(context.Context) error
}

func (c *collector) Export(ctx context.Context,
	r *coltracepb.ExportTraceServiceRequest) (*coltracepb.ExportTraceServiceResponse, error) {
	c.got <- r
	if c.answer != nil {
		return nil, c.answer(ctx)
	}
	return &coltracepb.ExportTraceServiceResponse{
		PartialSuccess: &coltracepb.ExportTracePartialSuccess{RejectedSpans: 1, ErrorMessage: "one is enough"},
	}, nil
}

// collect serves a collector, and returns its endpoint.
func collect(t *testing.T, answer func(context.Context) error) (*collector, string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "otlp.sock")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	c := &collector{got: make(chan *coltracepb.ExportTraceServiceRequest, 100), answer: answer}
	s := grpc.NewServer()
	coltracepb.RegisterTraceServiceServer(s, c)
	go func() { _ = s.Serve(l) }()
	t.Cleanup(s.Stop)
	return c, "unix://" + path
}

// serve serves an exporter, and returns its clients by their role.
func serve(t *testing.T, endpoint string) func(role.Role) coltracepb.TraceServiceClient {
	t.Helper()
	connect := connections(t, endpoint)
	return func(r role.Role) coltracepb.TraceServiceClient { return coltracepb.NewTraceServiceClient(connect(r)) }
}

// connections serves an exporter, and returns connections to it by their role.
func connections(t *testing.T, endpoint string) func(role.Role) *grpc.ClientConn {
	t.Helper()
	e, err := New(endpoint)
	if err != nil {
		t.Fatal(err)
	}
	network := &unixgrpc.InProcess{}
	l, err := network.Listen("nodestatus")
	if err != nil {
		t.Fatal(err)
	}
	policy := unixgrpc.NewPolicy(map[string][]role.Role{tracing.ExportMethod: Senders()})
	server := unixgrpc.NewServer(unixgrpc.ServerOptions{Policy: policy, MaxRequest: 2 * maxRequest})
	e.Register(server)
	go func() { _ = server.Serve(l) }()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- e.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		server.Stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return func(r role.Role) *grpc.ClientConn {
		conn, err := unixgrpc.Dial("nodestatus", unixgrpc.DialOptions{
			Network: network, Self: r, Server: role.NodeStatus,
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		return conn
	}
}

// of are spans that say that services have sent them.
func of(name string, services ...string) *coltracepb.ExportTraceServiceRequest {
	resource := &resourcepb.Resource{}
	for _, s := range services {
		resource.Attributes = append(resource.Attributes, &commonpb.KeyValue{
			Key: "service.name", Value: &commonpb.AnyValue{Value: &commonpb.AnyValue_StringValue{StringValue: s}},
		})
	}
	return &coltracepb.ExportTraceServiceRequest{ResourceSpans: []*tracepb.ResourceSpans{{
		Resource: resource, ScopeSpans: []*tracepb.ScopeSpans{{Spans: []*tracepb.Span{{Name: name}}}},
	}}}
}

// TestACollectorGetsTheSpansOfAllServices, before the services get the acknowledgement.
func TestACollectorGetsTheSpansOfAllServices(t *testing.T) {
	c, endpoint := collect(t, nil)
	as := serve(t, endpoint)
	for _, r := range []role.Role{role.Podsync, role.Prober, role.NodeStatus} {
		if _, err := as(r).Export(t.Context(), of("work of "+string(r), string(r))); err != nil {
			t.Fatal(err)
		}
		select {
		case got := <-c.got:
			if s := got.GetResourceSpans(); len(s) != 1 || sender(s[0]) != r ||
				s[0].GetScopeSpans()[0].GetSpans()[0].GetName() != "work of "+string(r) {
				t.Errorf("the collector got %v", got)
			}
		default:
			t.Errorf("%s was answered before the collector had its spans", r)
		}
	}
}

// TestAServiceSendsNoSpansOfAnother, nor more than its own can be, and the bus sends none.
func TestAServiceSendsNoSpansOfAnother(t *testing.T) {
	_, endpoint := collect(t, nil)
	as := serve(t, endpoint)
	for _, test := range []struct {
		from  role.Role
		spans *coltracepb.ExportTraceServiceRequest
		want  codes.Code
	}{
		{role.Prober, of("forged", "podsync"), codes.PermissionDenied},
		{role.Prober, of("unnamed"), codes.PermissionDenied},
		{role.Prober, of("of two", "prober", "podsync"), codes.PermissionDenied},
		{role.Prober, of(string(make([]byte, maxRequest)), "prober"), codes.InvalidArgument},
		{role.Bus, of("none", "bus"), codes.PermissionDenied},
		{role.Prober, &coltracepb.ExportTraceServiceRequest{}, codes.OK},
		{role.Prober, of("its own", "prober"), codes.OK},
	} {
		if _, err := as(test.from).Export(t.Context(), test.spans); status.Code(err) != test.want {
			t.Errorf("%s: got %v, want %v", test.from, err, test.want)
		}
	}
}

// TestACollectorsErrorsGoOn to who has the spans and decides whether to send them again, as far as they are of use.
func TestACollectorsErrorsGoOn(t *testing.T) {
	long := strings.Repeat("ä", maxText)
	_, refuses := collect(t, func(context.Context) error { return status.Error(codes.InvalidArgument, long) })
	_, err := serve(t, refuses)(role.Prober).Export(t.Context(), of("x", "prober"))
	if text := status.Convert(err).Message(); status.Code(err) != codes.InvalidArgument || len(text) > 2*maxText ||
		!strings.HasPrefix(text, "collector: ää") {
		t.Errorf("a collector that refuses: %v", err)
	}
	away := "unix://" + filepath.Join(t.TempDir(), "absent.sock")
	_, err = serve(t, away)(role.Prober).Export(t.Context(), of("x", "prober"))
	if status.Code(err) != codes.Unavailable {
		t.Errorf("a collector that is away: %v", err)
	}
}

// TestACollectorThatHangsHoldsFewCalls of a service, and none of another's.
func TestACollectorThatHangsHoldsFewCalls(t *testing.T) {
	release := make(chan struct{})
	c, endpoint := collect(t, func(context.Context) error { <-release; return nil })
	as := serve(t, endpoint)
	held := make(chan error, maxCalls)
	for range maxCalls {
		go func() {
			_, err := as(role.Prober).Export(t.Context(), of("x", "prober"))
			held <- err
		}()
		<-c.got
	}
	if _, err := as(role.Prober).Export(t.Context(), of("x", "prober")); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("one more of the same service: %v", err)
	}
	go func() { <-c.got; close(release) }()
	if _, err := as(role.Podsync).Export(t.Context(), of("x", "podsync")); err != nil {
		t.Errorf("one of another service: %v", err)
	}
	for range maxCalls {
		if err := <-held; err != nil {
			t.Error(err)
		}
	}
}

// TestFewCallsAreDecoded of a service at one time, because spans without content take much more then.
func TestFewCallsAreDecoded(t *testing.T) {
	_, endpoint := collect(t, nil)
	prober := connections(t, endpoint)(role.Prober)
	proctest.Await(t, 10*time.Second, "the calls have all places", func() bool {
		for range maxCalls {
			if _, err := prober.NewStream(t.Context(), &grpc.StreamDesc{}, tracing.ExportMethod); err != nil { // no message yet
				t.Fatal(err)
			}
		}
		// A call that comes before the last of them takes its place, and waits until its spans are read.
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		_, err := coltracepb.NewTraceServiceClient(prober).Export(ctx, of("x", "prober"))
		return status.Code(err) == codes.ResourceExhausted
	})
}

func TestAnEndpointThatCannotBeIsRefused(t *testing.T) {
	for _, endpoint := range []string{
		"unix:", "unix://", "unix://otlp.sock", "unix-abstract:", "dns:///", ":", "http://%zz",
	} {
		if _, err := New(endpoint); err == nil || !strings.Contains(err.Error(), "tracing.endpoint") ||
			!strings.Contains(err.Error(), "give host:port") {
			t.Errorf("%q is taken, or not explained: %v", endpoint, err)
		}
	}
	for _, endpoint := range []string{
		"localhost:4317", "127.0.0.1:4317", "[::1]:4317", ":4317", "collector", "dns:///collector:4317",
		"dns://10.0.0.10/collector:4317", "unix:///run/otlp.sock", "unix:otlp.sock", "unix-abstract:otlp",
	} {
		e, err := New(endpoint)
		if err != nil {
			t.Errorf("%q: %v", endpoint, err)
			continue
		}
		if err := e.conn.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestANodeThatTracesNothingExportsNothing: no service may call, and there is no task.
func TestANodeThatTracesNothingExportsNothing(t *testing.T) {
	s := &service.Service{} // whatever is started would panic
	if err := Start(s); err != nil {
		t.Error(err)
	}
}
