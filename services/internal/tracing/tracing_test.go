package tracing

import (
	"context"
	"encoding/hex"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	tracingapi "k8s.io/component-base/tracing/api/v1"
)

// recorded is a Tracer that keeps its spans.
type recorded struct {
	*Tracer
	mu    sync.Mutex
	spans map[string]*tracepb.Span // by name
	of    map[string]string        // attributes of the resource
}

func record(t *testing.T, rate *int32) *recorded {
	t.Helper()
	r := &recorded{spans: map[string]*tracepb.Span{}, of: map[string]string{}}
	var err error
	r.Tracer, err = New(Options{
		Config:  tracingapi.TracingConfiguration{SamplingRatePerMillion: rate},
		Service: "podsync", Replica: "0", Version: "v1", Node: "n",
		Log: slog.New(slog.DiscardHandler), Metrics: prometheus.NewRegistry(),
		Send: func(_ context.Context, data *tracepb.TracesData) error {
			r.mu.Lock()
			defer r.mu.Unlock()
			for _, of := range data.GetResourceSpans() {
				for _, a := range of.GetResource().GetAttributes() {
					r.of[a.GetKey()] = a.GetValue().GetStringValue()
				}
				for _, in := range of.GetScopeSpans() {
					for _, s := range in.GetSpans() {
						r.spans[s.GetName()] = s
					}
				}
			}
			return nil
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// flush returns what was recorded, by name.
func (r *recorded) flush(t *testing.T) map[string]*tracepb.Span {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := r.Run(ctx); err != nil {
		t.Fatal(err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.spans
}

func all() *int32 { return new(int32(1_000_000)) }

// TestOffCostsNothing: where a node does not trace, what a sync does for its traces allocates nothing, sends nothing,
// and its connections are as they would be.
func TestOffCostsNothing(t *testing.T) {
	var off *Tracer
	ctx := t.Context()
	work := func() {
		ctx, round := off.Begin(ctx, "syncPod")
		round.Set(PodUID, "u")
		inner, span := Start(ctx, "startContainer")
		_, heard := off.Continue(inner, ParseParent(""), "doProbe")
		heard.End(nil)
		span.End(io.EOF)
		if p := ParentOf(Outside(inner)); !p.None() || p.String() != "" {
			t.Error("there is something to send")
		}
		round.End(nil)
	}
	if n := testing.AllocsPerRun(100, work); n != 0 {
		t.Errorf("%v allocations a sync", n)
	}
	base := http.DefaultTransport
	if off.DialOptions() != nil || off.ServerOptions() != nil || off.Transport(base) != base {
		t.Error("connections are not as without traces")
	}
}

func TestATraceOverProcesses(t *testing.T) {
	podsync, prober := record(t, all()), record(t, nil)
	ctx, round := podsync.Begin(t.Context(), "syncPod")
	round.Set(PodUID, "u")
	inner, start := Start(ctx, "startContainer")
	onBus := ParentOf(inner).String()
	start.End(errors.New("no such image"))
	round.End(nil)
	_, late := Start(context.WithoutCancel(ctx), "EnsureImageExists") // begun after the sync has ended
	late.End(nil)
	_, outside := Start(Outside(ctx), "refresh")
	if outside.Recording() {
		t.Error("a span begins outside of the trace")
	}

	_, probe := prober.Continue(t.Context(), ParseParent(onBus), "doProbe")
	probe.End(nil)
	_, alone := prober.Begin(t.Context(), "alone") // at a rate of none
	alone.End(nil)

	spans := podsync.flush(t)
	root, first := spans["syncPod"], spans["startContainer"]
	if root == nil || first == nil || spans["EnsureImageExists"] == nil {
		t.Fatalf("podsync recorded %v", spans)
	}
	if len(root.GetParentSpanId()) != 0 || string(first.GetParentSpanId()) != string(root.GetSpanId()) ||
		string(spans["EnsureImageExists"].GetParentSpanId()) != string(root.GetSpanId()) {
		t.Errorf("spans are not below the sync: %v", spans)
	}
	if s := first.GetStatus(); s.GetCode() != tracepb.Status_STATUS_CODE_ERROR || s.GetMessage() != "no such image" {
		t.Errorf("the error is reported as %v", s)
	}
	if podsync.of[ServiceName] != "podsync" || podsync.of["k8s.node.name"] != "n" {
		t.Errorf("the resource is %v", podsync.of)
	}
	heard := prober.flush(t)
	if len(heard) != 1 || heard["doProbe"] == nil ||
		string(heard["doProbe"].GetTraceId()) != string(root.GetTraceId()) ||
		string(heard["doProbe"].GetParentSpanId()) != string(first.GetSpanId()) {
		t.Errorf("the prober recorded %v", heard)
	}
}

// TestAnUnsampledTraceStaysSo in all that is begun in it, and is not passed on to other services.
func TestAnUnsampledTraceStaysSo(t *testing.T) {
	r := record(t, new(int32(0)))
	ctx, round := r.Begin(t.Context(), "syncPod")
	of := ParentOf(ctx)
	if of.None() || of.String() != "" {
		t.Errorf("the trace is %v, passed on as %q", of, of.String())
	}
	round.End(nil)
	sampling := record(t, all())
	_, again := sampling.Begin(of.In(t.Context()), "syncPod")
	again.End(nil)
	if got := sampling.flush(t); len(got) != 0 {
		t.Errorf("recorded %v", got)
	}
}

func TestLongErrorsAreCut(t *testing.T) {
	r := record(t, all())
	_, s := r.Begin(t.Context(), "x")
	s.End(errors.New(strings.Repeat("ä", maxError)))
	if got := r.flush(t)["x"].GetStatus().GetMessage(); len(got) > maxError || !strings.HasPrefix(got, "ää") {
		t.Errorf("%d bytes of error", len(got))
	}
}

func TestHTTPRequestsContinueTraces(t *testing.T) {
	var headers []string
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		headers = append(headers, r.Header.Get("Traceparent"))
	}))
	defer server.Close()
	r := record(t, all())
	c := &http.Client{Transport: r.Transport(http.DefaultTransport)}
	get := func(ctx context.Context) {
		q, err := http.NewRequestWithContext(ctx, http.MethodGet, server.URL, nil)
		if err != nil {
			t.Fatal(err)
		}
		q.Header.Set("Authorization", "Bearer geheim")
		answer, err := c.Do(q)
		if err != nil {
			t.Fatal(err)
		}
		answer.Body.Close()
	}
	get(t.Context())
	ctx, s := r.Begin(t.Context(), "syncPod")
	get(ctx)
	s.End(nil)
	if len(headers) != 2 || headers[0] != "" || headers[1] == "" {
		t.Errorf("headers are %q", headers)
	}
	span := r.flush(t)["HTTP GET"]
	if span == nil || strings.Contains(span.String(), "geheim") {
		t.Errorf("the request's span is %v", span)
	}
}

func TestServedRequestsAreSpans(t *testing.T) {
	mux := http.NewServeMux()
	mux.HandleFunc("/exec/{pod}", func(w http.ResponseWriter, r *http.Request) {
		// A stream takes the connection, and a slow reader has a deadline.
		if err := http.NewResponseController(w).SetWriteDeadline(time.Time{}); err != nil {
			t.Error(err)
		}
		if _, ok := w.(http.Hijacker); !ok {
			t.Error("no stream can take the connection")
		}
		_, s := Start(r.Context(), "call")
		s.End(nil)
	})
	r := record(t, all())
	const trace, parent = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
	for name, believed := range map[string]bool{"a known caller": true, "any caller": false} {
		server := httptest.NewServer(r.Handler(mux, believed))
		q, err := http.NewRequestWithContext(t.Context(), http.MethodPost, server.URL+"/exec/web?command=geheim", nil)
		if err != nil {
			t.Fatal(err)
		}
		q.Header.Set("Traceparent", "00-"+trace+"-"+parent+"-01")
		q.Header.Set("Authorization", "Bearer geheim")
		answer, err := http.DefaultClient.Do(q)
		if err != nil {
			t.Fatal(err)
		}
		answer.Body.Close()
		server.Close() // it waits for the end of the request's span
		spans := r.flush(t)
		served, call := spans["/exec/{pod}"], spans["call"]
		if served == nil || string(call.GetParentSpanId()) != string(served.GetSpanId()) ||
			(hex.EncodeToString(served.GetTraceId()) == trace) != believed ||
			(hex.EncodeToString(served.GetParentSpanId()) == parent) != believed {
			t.Errorf("%s: the request is %v, and what it calls %v", name, served, call)
		}
		if strings.Contains(served.String(), "geheim") {
			t.Errorf("the span has what no one may see: %v", served)
		}
	}
	var off *Tracer
	if h := off.Handler(mux, true); h != http.Handler(mux) {
		t.Error("requests are wrapped where nothing is traced")
	}
}

func TestGRPCCallsContinueTraces(t *testing.T) {
	caller, callee := record(t, all()), record(t, nil)
	var seen []string
	l := bufconn.Listen(1 << 16)
	server := grpc.NewServer(append(callee.ServerOptions(), grpc.UnaryInterceptor(func(ctx context.Context, req any,
		_ *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
		md, _ := metadata.FromIncomingContext(ctx)
		seen = md.Get(traceparent)
		_, s := Start(ctx, "inside")
		defer s.End(nil)
		return handle(ctx, req)
	}))...)
	grpc_health_v1.RegisterHealthServer(server, health.NewServer())
	go func() { _ = server.Serve(l) }()
	defer server.Stop()
	conn, err := grpc.NewClient("passthrough:///x", append(caller.DialOptions(),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return l.DialContext(ctx) }))...)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ctx, s := caller.Begin(t.Context(), "syncPod")
	if _, err := grpc_health_v1.NewHealthClient(conn).Check(ctx, &grpc_health_v1.HealthCheckRequest{}); err != nil {
		t.Fatal(err)
	}
	s.End(nil)
	server.GracefulStop()
	const method = "grpc.health.v1.Health/Check"
	out, in := caller.flush(t)[method], callee.flush(t)
	if len(seen) != 1 || out == nil || in[method] == nil || in["inside"] == nil {
		t.Fatalf("header %q, spans %v and %v", seen, out, in)
	}
	if string(in[method].GetParentSpanId()) != string(out.GetSpanId()) ||
		string(in["inside"].GetParentSpanId()) != string(in[method].GetSpanId()) {
		t.Errorf("the callee's spans are not below the caller's: %v", in)
	}
}

// TestSpansDoNotWaitForTheReceiver: ending spans takes no time, however long sending takes.
func TestSpansDoNotWaitForTheReceiver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tracer, err := New(Options{
			Config: tracingapi.TracingConfiguration{SamplingRatePerMillion: all()},
			Log:    slog.New(slog.DiscardHandler), Metrics: prometheus.NewRegistry(),
			Send: func(ctx context.Context, _ *tracepb.TracesData) error {
				<-ctx.Done()
				return status.FromContextError(ctx.Err()).Err()
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- tracer.Run(ctx) }()
		began := time.Now()
		for range 2 * maxWaiting {
			_, s := tracer.Begin(ctx, "syncPod")
			s.End(nil)
		}
		if took := time.Since(began); took != 0 {
			t.Errorf("it took %v", took)
		}
		time.Sleep(time.Minute)
		began = time.Now()
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if took := time.Since(began); took > time.Second {
			t.Errorf("the end took %v", took)
		}
	})
}

func FuzzParseParent(f *testing.F) {
	f.Add("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
	f.Add("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00")
	f.Add("cc-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-what-the-future-will-be-like")
	f.Add(strings.Repeat("0", maxParent+1))
	f.Fuzz(func(t *testing.T, s string) {
		p := ParseParent(s)
		if again := p.String(); again != "" && ParseParent(again).String() != again {
			t.Errorf("%q is read as %q", s, again)
		}
	})
}
