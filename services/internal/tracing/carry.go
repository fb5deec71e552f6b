package tracing

import (
	"net/http"

	"go.opentelemetry.io/contrib/instrumentation/google.golang.org/grpc/otelgrpc"
	"go.opentelemetry.io/contrib/instrumentation/net/http/otelhttp"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc"
)

// DialOptions let the calls of a gRPC connection continue traces. They begin none.
func (t *Tracer) DialOptions() []grpc.DialOption {
	if t == nil {
		return nil
	}
	return []grpc.DialOption{grpc.WithStatsHandler(otelgrpc.NewClientHandler(t.calls()...))}
}

// ServerOptions let a gRPC server continue the traces of its callers.
func (t *Tracer) ServerOptions() []grpc.ServerOption {
	if t == nil {
		return nil
	}
	return []grpc.ServerOption{grpc.StatsHandler(otelgrpc.NewServerHandler(t.calls()...))}
}

func (t *Tracer) calls() []otelgrpc.Option {
	return []otelgrpc.Option{
		otelgrpc.WithTracerProvider(t.follows),
		otelgrpc.WithPropagators(propagation.TraceContext{}),
	}
}

// Transport returns an HTTP transport with requests that continue traces. Requests of no trace go as they are, without
// a header.
func (t *Tracer) Transport(base http.RoundTripper) http.RoundTripper {
	if t == nil {
		return base
	}
	return transport{base: base, traced: otelhttp.NewTransport(base,
		otelhttp.WithTracerProvider(t.follows),
		otelhttp.WithPropagators(propagation.TraceContext{}))}
}

// Handler returns a handler of HTTP that makes a span of each request, named by the pattern that a mux has matched.
// They are in the trace of the caller, or in one that begins here if the caller is in none, or is not to be believed.
func (t *Tracer) Handler(next http.Handler, believed bool) http.Handler {
	if t == nil {
		return next
	}
	return otelhttp.NewHandler(next, "",
		otelhttp.WithTracerProvider(t.begins),
		otelhttp.WithPropagators(propagation.TraceContext{}),
		otelhttp.WithPublicEndpointFn(func(*http.Request) bool { return !believed }),
		otelhttp.WithSpanNameFormatter(func(_ string, r *http.Request) string {
			if r.Pattern == "" {
				return "HTTP route not found"
			}
			return r.Pattern
		}))
}

type transport struct{ base, traced http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (t transport) RoundTrip(r *http.Request) (*http.Response, error) {
	if trace.SpanContextFromContext(r.Context()).IsSampled() {
		return t.traced.RoundTrip(r)
	}
	return t.base.RoundTrip(r)
}

// WrappedRoundTripper lets client-go find the transport below.
func (t transport) WrappedRoundTripper() http.RoundTripper { return t.base }
