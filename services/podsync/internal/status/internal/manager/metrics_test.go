package manager

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	dto "github.com/prometheus/client_model/go"
	v1 "k8s.io/api/core/v1"

	"github.com/microlet/microlet/services/podsync/internal/pod"
	"github.com/microlet/microlet/services/podsync/internal/pod/status"
)

func TestTerminationsAreCounted(t *testing.T) {
	m, err := New(Options{Client: newServer()})
	if err != nil {
		t.Fatal(err)
	}
	p := testPod("a")
	p.Spec.InitContainers = []v1.Container{{Name: "i"}}
	for range 3 { // the same report again counts nothing
		m.Set(p, status.Generate(p, ready(ctr("2", "a", dead, 1), ctr("1", "i", dead, 0)), inputs()))
	}
	for labels, want := range map[[3]string]float64{
		{"container", "1", "Error"}:          1,
		{"init_container", "0", "Completed"}: 1,
		{"container", "0", "Completed"}:      0,
	} {
		if got := testutil.ToFloat64(m.metrics.terminated.WithLabelValues(labels[0], labels[1], labels[2])); got != want {
			t.Errorf("%v: %v, want %v", labels, got, want)
		}
	}
}

func TestStartsAreTimed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, err := New(Options{Client: newServer()})
		if err != nil {
			t.Fatal(err)
		}
		p := testPod("a")
		for _, s := range []*pod.State{ready(), ready(), ready(ctr("1", "a", running, 0)),
			ready(ctr("1", "a", dead, 1)), ready(ctr("2", "a", running, 0))} {
			m.Set(p, status.Generate(p, s, inputs()))
			time.Sleep(3 * time.Second)
		}
		var reported dto.Metric
		if err := m.metrics.started.Write(&reported); err != nil {
			t.Fatal(err)
		}
		if h := reported.GetHistogram(); h.GetSampleCount() != 1 || h.GetSampleSum() != 6 {
			t.Errorf("%d starts that took %v s together, want one of 6 s", h.GetSampleCount(), h.GetSampleSum())
		}
	})
}
