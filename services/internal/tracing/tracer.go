package tracing

import (
	"context"
	"log/slog"
	"os"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	tracingapi "k8s.io/component-base/tracing/api/v1"

	"github.com/microlet/microlet/services/internal/spanqueue"
)

const (
	// maxWaiting bounds the spans that wait to be sent.
	maxWaiting = 2048
	// maxBatch is how many spans are sent at once.
	maxBatch = 128

	// perMillion is what samplingRatePerMillion is a part of.
	perMillion = 1_000_000
)

// OTLP's trace service, by which services send their spans to the one that exports them, and that one to the collector.
const (
	ExportService = "opentelemetry.proto.collector.trace.v1.TraceService"
	ExportMethod  = "/" + ExportService + "/Export"
)

// ServiceName is the key of the resource's attribute that names the service.
const ServiceName = "service.name"

// Options of a Tracer.
type Options struct {
	// Config is the tracing of the kubelet's configuration.
	Config tracingapi.TracingConfiguration
	// Service, Replica, Version and Node say where the spans come from.
	Service, Replica, Version, Node string
	// Send sends spans to who exports them.
	Send    func(ctx context.Context, spans *tracepb.TracesData) error
	Log     *slog.Logger
	Metrics prometheus.Registerer
}

// Tracer records the spans of a service. Nil records none.
type Tracer struct {
	// begins begins traces, as often as the configuration says; follows only continues them.
	begins, follows *sdktrace.TracerProvider
	queue           *spanqueue.Queue[sdktrace.ReadOnlySpan]
}

// New returns a Tracer that sends once Run runs.
func New(o Options) (*Tracer, error) {
	exporter := otlptrace.NewUnstarted(client{send: o.Send})
	queue, err := spanqueue.New(spanqueue.Options[sdktrace.ReadOnlySpan]{
		Limit: maxWaiting, Batch: maxBatch, Send: exporter.ExportSpans, Log: o.Log, Metrics: o.Metrics,
	})
	if err != nil {
		return nil, err
	}
	rate := sdktrace.NeverSample()
	if o.Config.SamplingRatePerMillion != nil {
		rate = sdktrace.TraceIDRatioBased(float64(*o.Config.SamplingRatePerMillion) / perMillion)
	}
	provider := func(roots sdktrace.Sampler) *sdktrace.TracerProvider {
		return sdktrace.NewTracerProvider(
			sdktrace.WithSampler(sdktrace.ParentBased(roots)),
			sdktrace.WithSpanProcessor(processor{queue}),
			sdktrace.WithResource(resource.NewSchemaless(
				attribute.String(ServiceName, o.Service),
				attribute.String("service.namespace", "microlet"),
				attribute.String("service.instance.id", o.Replica),
				attribute.String("service.version", o.Version),
				attribute.Int("process.pid", os.Getpid()),
				attribute.String("host.name", o.Node),
				attribute.String("k8s.node.name", o.Node),
			)),
		)
	}
	return &Tracer{begins: provider(rate), follows: provider(sdktrace.NeverSample()), queue: queue}, nil
}

// Run sends what is recorded until ctx ends.
func (t *Tracer) Run(ctx context.Context) error { return t.queue.Run(ctx) }

// Begin begins a span, and with it a trace unless ctx belongs to one. The configuration says how many of the traces are
// recorded.
func (t *Tracer) Begin(ctx context.Context, name string) (context.Context, Span) {
	if t == nil {
		return ctx, Span{}
	}
	ctx, span := t.begins.Tracer(scope).Start(ctx, name)
	return ctx, Span{span}
}

// Continue begins a span in a trace of another service, if there is one.
func (t *Tracer) Continue(ctx context.Context, in Parent, name string) (context.Context, Span) {
	if t == nil || !in.span.IsSampled() {
		return ctx, Span{}
	}
	ctx, span := t.follows.Tracer(scope).Start(in.In(ctx), name)
	return ctx, Span{span}
}

// processor gives spans that have ended to the queue.
type processor struct {
	queue *spanqueue.Queue[sdktrace.ReadOnlySpan]
}

func (processor) OnStart(context.Context, sdktrace.ReadWriteSpan) {}
func (processor) Shutdown(context.Context) error                  { return nil }
func (processor) ForceFlush(context.Context) error                { return nil }

func (p processor) OnEnd(s sdktrace.ReadOnlySpan) {
	if s.SpanContext().IsSampled() {
		p.queue.Add(s)
	}
}

// client is what sends, as the exporter of OpenTelemetry has it.
type client struct {
	send func(ctx context.Context, spans *tracepb.TracesData) error
}

func (client) Start(context.Context) error { return nil }
func (client) Stop(context.Context) error  { return nil }

func (c client) UploadTraces(ctx context.Context, spans []*tracepb.ResourceSpans) error {
	return c.send(ctx, &tracepb.TracesData{ResourceSpans: spans})
}
