package service

import (
	"strings"
	"testing"

	tracingapi "k8s.io/component-base/tracing/api/v1"

	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/services/internal/testing/proctest"
)

// TestOnlyAServiceThatTracesPaysForIt: without tracing in the kubelet's configuration there is no Tracer, no task and
// no metric of one.
func TestOnlyAServiceThatTracesPaysForIt(t *testing.T) {
	for _, test := range []struct {
		of     role.Role
		config *tracingapi.TracingConfiguration
		want   bool
	}{
		{role.Prober, nil, false},
		{role.Prober, &tracingapi.TracingConfiguration{}, true},
		{role.Bus, &tracingapi.TracingConfiguration{}, false},
	} {
		cfg := DefaultConfig()
		cfg.RuntimeDir, cfg.Tracing = proctest.TempDir(t, 0o755), test.config
		s := newIn(t, cfg, test.of)
		families, err := s.Metrics.Gather()
		if err != nil {
			t.Fatal(err)
		}
		found := s.Tracer != nil
		for _, f := range families {
			found = found || strings.HasPrefix(f.GetName(), "microlet_trace_")
		}
		for _, task := range s.waiting {
			found = found || task.name == "traces"
		}
		if found != test.want {
			t.Errorf("%s with %v: there is something of traces: %v", test.of, test.config, found)
		}
	}
}
