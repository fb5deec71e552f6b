package tracing

import (
	"context"
	"strings"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
)

// Keys of attributes. None of them may hold a secret: no environment, argument, header or output of a probe.
const (
	PodUID        = "k8s.pod.uid"
	PodName       = "k8s.pod.name"
	PodNamespace  = "k8s.namespace.name"
	ContainerName = "k8s.container.name"
	ContainerID   = "container.id"
	ImageName     = "container.image.name"
	EventReason   = "microlet.event.reason"
	ProbeKind     = "microlet.probe.kind"
	ProbeResult   = "microlet.probe.result"
)

const (
	// scope names what makes the spans.
	scope = "github.com/microlet/microlet"
	// maxError bounds the text of an error, which may be of any length.
	maxError = 1 << 10
)

// Span is one span. Its zero value records nothing.
type Span struct{ span trace.Span }

// Start begins a span in the trace that ctx belongs to, if that is recorded. The span ends with End.
func Start(ctx context.Context, name string) (context.Context, Span) {
	parent := trace.SpanFromContext(ctx)
	if !parent.SpanContext().IsSampled() {
		return ctx, Span{}
	}
	ctx, span := parent.TracerProvider().Tracer(scope).Start(ctx, name)
	return ctx, Span{span}
}

// Recording reports whether the span will be exported.
func (s Span) Recording() bool { return s.span != nil && s.span.IsRecording() }

// Set sets an attribute.
func (s Span) Set(key, value string) {
	if s.Recording() {
		s.span.SetAttributes(attribute.String(key, value))
	}
}

// End ends the span. An error marks it as failed.
func (s Span) End(err error) {
	if s.span == nil {
		return
	}
	if err != nil && s.span.IsRecording() {
		text := err.Error()
		if len(text) > maxError {
			text = text[:maxError]
		}
		s.span.SetStatus(codes.Error, strings.ToValidUTF8(text, ""))
	}
	s.span.End()
}

// Parent is the span that another one is begun in, elsewhere or later. Its zero value is none.
type Parent struct{ span trace.SpanContext }

// ParentOf returns the span that ctx is in. It may be one that is not recorded: then what is begun in it is not
// recorded either.
func ParentOf(ctx context.Context) Parent { return Parent{trace.SpanContextFromContext(ctx)} }

// None reports whether there is no span.
func (p Parent) None() bool { return !p.span.IsValid() }

// String returns a W3C traceparent; "" if the trace is not recorded, so that nothing is sent for it.
func (p Parent) String() string {
	if !p.span.IsSampled() {
		return ""
	}
	carrier := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(trace.ContextWithSpanContext(context.Background(), p.span), carrier)
	return carrier[traceparent]
}

const (
	traceparent = "traceparent"
	// maxParent bounds a traceparent. Version 00 has 55 bytes, and later ones may have more.
	maxParent = 128
)

// ParseParent returns the span that String wrote. It returns none for anything else, since others may write what they
// like, and a trace is not worth an error.
func ParseParent(s string) Parent {
	if s == "" || len(s) > maxParent {
		return Parent{}
	}
	ctx := propagation.TraceContext{}.Extract(context.Background(), propagation.MapCarrier{traceparent: s})
	return ParentOf(ctx)
}

// In returns a context in which spans begin in the parent.
func (p Parent) In(ctx context.Context) context.Context {
	if p.None() {
		return ctx
	}
	return trace.ContextWithRemoteSpanContext(ctx, p.span)
}

// Outside returns ctx without its trace, for work that is no part of it.
func Outside(ctx context.Context) context.Context {
	if !trace.SpanContextFromContext(ctx).IsValid() {
		return ctx
	}
	return trace.ContextWithSpan(ctx, nil)
}
