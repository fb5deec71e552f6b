// Package spantest records the spans of what a test tests.
package spantest

import (
	"context"
	"encoding/hex"
	"log/slog"
	"slices"
	"sync"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	tracingapi "k8s.io/component-base/tracing/api/v1"

	"github.com/microlet/microlet/services/internal/tracing"
)

// Span is what was recorded of one span.
type Span struct {
	Name, Trace, ID, Parent string
	Attributes              map[string]string
	Failed                  string
}

// Recorder records every trace.
type Recorder struct {
	*tracing.Tracer
	mu    sync.Mutex
	spans []Span
}

// New returns a Recorder.
func New(t *testing.T) *Recorder {
	t.Helper()
	r := &Recorder{}
	var err error
	r.Tracer, err = tracing.New(tracing.Options{
		Config: tracingapi.TracingConfiguration{SamplingRatePerMillion: new(int32(1_000_000))},
		Log:    slog.New(slog.DiscardHandler), Metrics: prometheus.NewRegistry(), Send: r.take,
	})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func (r *Recorder) take(_ context.Context, data *tracepb.TracesData) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, of := range data.GetResourceSpans() {
		for _, in := range of.GetScopeSpans() {
			for _, s := range in.GetSpans() {
				span := Span{
					Name: s.GetName(), Trace: hex.EncodeToString(s.GetTraceId()), ID: hex.EncodeToString(s.GetSpanId()),
					Parent: hex.EncodeToString(s.GetParentSpanId()), Failed: s.GetStatus().GetMessage(),
					Attributes: map[string]string{},
				}
				for _, a := range s.GetAttributes() {
					span.Attributes[a.GetKey()] = a.GetValue().GetStringValue()
				}
				r.spans = append(r.spans, span)
			}
		}
	}
	return nil
}

// Spans returns what has ended so far, in the order of its ends.
func (r *Recorder) Spans(t *testing.T) []Span {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := r.Run(ctx); err != nil { // it sends what there is
		t.Fatal(err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.spans)
}

// Named returns the spans of a name.
func Named(spans []Span, name string) []Span {
	return slices.DeleteFunc(slices.Clone(spans), func(s Span) bool { return s.Name != name })
}
