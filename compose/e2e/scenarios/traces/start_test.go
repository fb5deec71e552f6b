//go:build long

package traces

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/microlet/microlet/compose/e2e/internal/spans"
	"github.com/microlet/microlet/compose/e2e/scene"
	"github.com/microlet/microlet/proto/role"
)

// TestTraceOfAStart starts a pod whose readiness probe runs in its container, and looks at the one trace of its start:
// it goes through podsync, containerd, the prober and nodestatus, and each span is below the one that it is a part of.
func TestTraceOfAStart(t *testing.T) {
	s := begin(t)
	s.CreatePods(scene.ProbedPod("web", corev1.ProbeHandler{Exec: &corev1.ExecAction{
		Command: []string{"cat", "/tmp/www/ok"},
	}}))
	s.WaitReady(scene.Patience, "web")
	trace := s.start("web", func(trace spans.Trace) error {
		if err := whole(trace); err != nil {
			return err
		}
		return hasStart(trace)
	})
	for _, wrong := range trace.Wrong() {
		t.Error(wrong)
	}
	processes := trace.Processes()
	for _, want := range []string{
		s.process(role.Podsync), s.process(role.Prober), s.process(role.NodeStatus), containerd,
	} {
		if processes[want] == 0 {
			t.Errorf("nothing of the process %s", want)
		}
	}
	if len(trace) < 12 || len(processes) < 4 {
		t.Errorf("%d spans of %v", len(trace), slices.Sorted(maps.Keys(processes)))
	}
	t.Logf("%d spans over %d processes: %v", len(trace), len(processes), processes)
	for _, r := range []role.Role{role.Podsync, role.Prober, role.NodeStatus} {
		s.keepsSpans(r)
	}
}

// hasStart says what the trace of a start lacks.
func hasStart(trace spans.Trace) error {
	for _, want := range []struct{ service, name, key, value string }{
		{"podsync", "canAdmitPod", "", ""},
		{"podsync", "WaitForAttachAndMount", "", ""},
		{"podsync", "EnsureImageExists", "k8s.container.name", "main"},
		{"podsync", "createPodSandbox", "", ""},
		{"podsync", "startContainer", "k8s.container.name", "main"},
		{"podsync", "HTTP PATCH", "http.response.status_code", "200"},
		{containerd, "runtime.v1.RuntimeService/RunPodSandbox", "", ""},
		{containerd, "runtime.v1.RuntimeService/CreateContainer", "", ""},
		{containerd, "runtime.v1.RuntimeService/StartContainer", "", ""},
		{containerd, "runtime.v1.RuntimeService/ExecSync", "", ""},
		{"prober", spans.Probe, "microlet.probe.result", "success"},
		{"nodestatus", spans.Delivery, "microlet.event.reason", "Created"},
		{"nodestatus", spans.Delivery, "microlet.event.reason", "Started"},
		{"nodestatus", "HTTP POST", "http.response.status_code", "201"},
	} {
		if !slices.ContainsFunc(trace.Of(want.service, want.name), func(s spans.Span) bool {
			return s.Error == "" && s.Attributes[want.key] == want.value
		}) {
			return fmt.Errorf("%+v lacks in:\n%v", want, trace)
		}
	}
	return nil
}
