package podtrace

import (
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/microlet/microlet/services/internal/tracing/spantest"
)

func testPod() *v1.Pod {
	return &v1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "u", Name: "p", Namespace: "ns"}}
}

func TestAStartIsOneTraceHoweverManySyncsItTakes(t *testing.T) {
	r := spantest.New(t)
	traces := New(r.Tracer)
	sync := func(name string) string {
		_, span := traces.Begin(t.Context(), testPod(), name)
		span.End(nil)
		return traces.Of("u").String()
	}
	first := sync("syncPod")
	if second := sync("syncPod"); second == first || first == "" {
		t.Errorf("the pod is in %q and then in %q", first, second)
	}
	traces.Rest("u")
	if traces.Of("u").None() {
		t.Error("what is reported after the last sync of a start is in no trace")
	}
	sync("syncTerminatingPod")
	sync("syncTerminatedPod")
	traces.Forget("u")
	if !traces.Of("u").None() {
		t.Error("a pod that is gone is in a trace")
	}
	spans := r.Spans(t)
	if len(spans) != 4 {
		t.Fatalf("recorded %+v", spans)
	}
	a, b, c, d := spans[0], spans[1], spans[2], spans[3]
	if a.Trace != b.Trace || b.Parent != a.ID || c.Trace == a.Trace || c.Parent != "" || d.Trace != c.Trace {
		t.Errorf("recorded %+v", spans)
	}
	if got := a.Attributes; got["k8s.pod.uid"] != "u" || got["k8s.pod.name"] != "p" || got["k8s.namespace.name"] != "ns" {
		t.Errorf("attributes are %v", got)
	}
}

func TestAPodThatFindsNoRestFillsNoTrace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := spantest.New(t)
		traces := New(r.Tracer)
		for range 30 {
			_, span := traces.Begin(t.Context(), testPod(), "syncPod")
			span.End(nil)
			time.Sleep(time.Minute)
		}
		in := map[string]int{}
		for _, s := range r.Spans(t) {
			in[s.Trace]++
		}
		for trace, n := range in {
			if n > 11 {
				t.Errorf("trace %s has %d syncs", trace, n)
			}
		}
	})
}

func TestWithoutATracerThereAreNoTraces(t *testing.T) {
	traces, p := New(nil), testPod()
	if n := testing.AllocsPerRun(100, func() {
		_, span := traces.Begin(t.Context(), p, "syncPod")
		span.End(nil)
		traces.Rest("u")
		if traces.Of("u").String() != "" {
			t.Error("it is in a trace")
		}
		traces.Forget("u")
	}); n != 0 {
		t.Errorf("%v allocations a sync", n)
	}
}
