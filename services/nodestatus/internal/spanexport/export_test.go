package spanexport

import (
	"context"
	"log/slog"
	"net"
	"path/filepath"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	coltracepb "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	resourcepb "go.opentelemetry.io/proto/otlp/resource/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/services/internal/tracing"
	"github.com/microlet/microlet/services/internal/unixgrpc"
)

// collector is one of OTLP's own making.
type collector struct {
	coltracepb.UnimplementedTraceServiceServer
	got chan *coltracepb.ExportTraceServiceRequest
}

func (c *collector) Export(_ context.Context,
	r *coltracepb.ExportTraceServiceRequest) (*coltracepb.ExportTraceServiceResponse, error) {
	c.got <- r
	return &coltracepb.ExportTraceServiceResponse{
		PartialSuccess: &coltracepb.ExportTracePartialSuccess{RejectedSpans: 1, ErrorMessage: "one is enough"},
	}, nil
}

// collect serves a collector, and returns its endpoint.
func collect(t *testing.T) (*collector, string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "otlp.sock")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	c := &collector{got: make(chan *coltracepb.ExportTraceServiceRequest, 10)}
	s := grpc.NewServer()
	coltracepb.RegisterTraceServiceServer(s, c)
	go func() { _ = s.Serve(l) }()
	t.Cleanup(s.Stop)
	return c, "unix://" + path
}

// serve serves an exporter, and returns its clients by their role.
func serve(t *testing.T, endpoint string) func(role.Role) coltracepb.TraceServiceClient {
	t.Helper()
	e, err := New(endpoint, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	network := &unixgrpc.InProcess{}
	l, err := network.Listen("nodestatus")
	if err != nil {
		t.Fatal(err)
	}
	policy := unixgrpc.NewPolicy(map[string][]role.Role{tracing.ExportMethod: Senders()})
	server := unixgrpc.NewServer(unixgrpc.ServerOptions{Policy: policy, Log: slog.New(slog.DiscardHandler)})
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
	return func(r role.Role) coltracepb.TraceServiceClient {
		conn, err := unixgrpc.Dial("nodestatus", unixgrpc.DialOptions{
			Network: network, Self: r, Server: role.NodeStatus,
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		return coltracepb.NewTraceServiceClient(conn)
	}
}

// of are spans that say that a service has sent them.
func of(service, name string) *coltracepb.ExportTraceServiceRequest {
	return &coltracepb.ExportTraceServiceRequest{ResourceSpans: []*tracepb.ResourceSpans{{
		Resource: &resourcepb.Resource{Attributes: []*commonpb.KeyValue{{
			Key:   "service.name",
			Value: &commonpb.AnyValue{Value: &commonpb.AnyValue_StringValue{StringValue: service}},
		}}},
		ScopeSpans: []*tracepb.ScopeSpans{{Spans: []*tracepb.Span{{Name: name}}}},
	}}}
}

func TestACollectorGetsTheSpansOfAllServices(t *testing.T) {
	c, endpoint := collect(t)
	as := serve(t, endpoint)
	for _, r := range []role.Role{role.Podsync, role.Prober} {
		if _, err := as(r).Export(t.Context(), of(string(r), "work of "+string(r))); err != nil {
			t.Fatal(err)
		}
	}
	got := map[string]string{}
	for len(got) < 2 {
		select {
		case r := <-c.got:
			for _, s := range r.GetResourceSpans() {
				got[serviceName(s)] = s.GetScopeSpans()[0].GetSpans()[0].GetName()
			}
		case <-time.After(30 * time.Second):
			t.Fatalf("the collector got %v", got)
		}
	}
	if got["podsync"] != "work of podsync" || got["prober"] != "work of prober" {
		t.Errorf("the collector got %v", got)
	}
}

// TestAServiceSendsNoSpansOfAnother, nor more than its own can be, and the bus sends none.
func TestAServiceSendsNoSpansOfAnother(t *testing.T) {
	_, endpoint := collect(t)
	as := serve(t, endpoint)
	for _, test := range []struct {
		from  role.Role
		spans *coltracepb.ExportTraceServiceRequest
		want  codes.Code
	}{
		{role.Prober, of("podsync", "forged"), codes.PermissionDenied},
		{role.Prober, of("", "unnamed"), codes.PermissionDenied},
		{role.Prober, of("prober", string(make([]byte, maxRequest))), codes.InvalidArgument},
		{role.Bus, of("bus", "none"), codes.PermissionDenied},
		{role.Prober, of("prober", "its own"), codes.OK},
	} {
		if _, err := as(test.from).Export(t.Context(), test.spans); status.Code(err) != test.want {
			t.Errorf("%s: got %v, want %v", test.from, err, test.want)
		}
	}
}

// TestACollectorThatIsAwayFillsABoundedQueue, and no service waits for it.
func TestACollectorThatIsAwayFillsABoundedQueue(t *testing.T) {
	as := serve(t, "unix://"+filepath.Join(t.TempDir(), "absent.sock"))(role.Prober)
	large, taken := of("prober", string(make([]byte, maxRequest/2))), 0
	for range 20 {
		switch _, err := as.Export(t.Context(), large); status.Code(err) {
		case codes.OK:
			taken++
		case codes.ResourceExhausted:
		default:
			t.Fatal(err)
		}
	}
	if taken == 0 || taken > 2*maxWaiting/maxRequest {
		t.Errorf("took %d of 20 requests", taken)
	}
}

func TestAnEndpointThatCannotBeIsRefused(t *testing.T) {
	if _, err := New("unix:", slog.New(slog.DiscardHandler), prometheus.NewRegistry()); err == nil {
		t.Error("it is taken")
	}
}
