//go:build long

package traces

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"testing"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/microlet/microlet/compose/e2e/internal/spans"
	"github.com/microlet/microlet/compose/e2e/scene"
	"github.com/microlet/microlet/proto/role"
)

const containerd = "containerd"

// tracing is a scenario whose traces a receiver takes.
type tracing struct {
	*scene.Scene
	metrics *scene.MetricsReader
}

func begin(t *testing.T) *tracing {
	t.Helper()
	scene.Shared.UseMicrolet(t)
	s := scene.New(t)
	return &tracing{Scene: s, metrics: s.MetricsReader()}
}

// received are all spans so far.
func (s *tracing) received() []spans.Span {
	s.T.Helper()
	all, err := spans.Read(s.Spans())
	if err != nil {
		s.T.Fatal(err)
	}
	return all
}

// traces of a pod, each of which begins with a sync of it.
func (s *tracing) traces(pod string) []spans.Trace {
	s.T.Helper()
	p := s.Record.View().Pod(s.Namespace, pod)
	if p == nil {
		s.T.Fatalf("there is no pod %s", pod)
	}
	return spans.OfPod(s.received(), string(p.UID))
}

// start waits until the trace of a pod's start is as it shall be, and returns it.
func (s *tracing) start(pod string, complete func(spans.Trace) error) spans.Trace {
	s.T.Helper()
	var found spans.Trace
	scene.Await(s.T, scene.Patience, "the trace of the start of "+pod, func() error {
		all := s.traces(pod)
		if len(all) == 0 {
			return errors.New("no trace begins with a sync of it")
		}
		found = all[0]
		return complete(found)
	})
	return found
}

// process is the process of a service as a span names it.
func (s *tracing) process(r role.Role) string {
	s.T.Helper()
	return fmt.Sprintf("%s %d", r, s.MustPID(s.T, r))
}

// keepsSpans checks that a process of a service has dropped none of its spans, and that those that it counts as sent
// have arrived.
func (s *tracing) keepsSpans(r role.Role) {
	s.T.Helper()
	sent, dropped := s.counters(r)
	process := s.process(r)
	arrived := len(slices.DeleteFunc(s.received(), func(one spans.Span) bool { return one.Process() != process }))
	if sent == 0 || dropped > 0 || arrived < sent {
		s.T.Errorf("%s has sent %d spans and dropped %d, and %d have arrived", process, sent, dropped, arrived)
	}
}

// counters are what a service says of its spans.
func (s *tracing) counters(r role.Role) (sent, dropped int) {
	s.T.Helper()
	_, text, err := s.metrics.Get(s.T.Context(), "/metrics")
	if err != nil {
		s.T.Fatal(err)
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader(text))
	if err != nil {
		s.T.Fatal(err)
	}
	sum := func(name string) (n int) {
		for _, m := range families[name].GetMetric() {
			if slices.ContainsFunc(m.GetLabel(), func(l *dto.LabelPair) bool {
				return l.GetName() == "service" && l.GetValue() == string(r)
			}) {
				n += int(m.GetCounter().GetValue())
			}
		}
		return n
	}
	return sum("microlet_trace_spans_sent_total"), sum("microlet_trace_spans_dropped_total")
}

// whole says what a trace lacks: spans of its own, and those of services.
func whole(t spans.Trace, services ...string) error {
	if orphans := t.Orphans(); len(orphans) > 0 {
		return fmt.Errorf("their parents lack: %v", orphans)
	}
	for _, name := range services {
		if len(t.Of(name, "")) == 0 {
			return fmt.Errorf("nothing of %s in %v", name, t)
		}
	}
	return nil
}

// without leaves a service's spans out.
func without(t spans.Trace, service string) spans.Trace {
	return slices.DeleteFunc(slices.Clone(t), func(s spans.Span) bool { return s.Service == service })
}
