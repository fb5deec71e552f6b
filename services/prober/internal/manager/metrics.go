package manager

import (
	"maps"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"

	proberv1 "github.com/microlet/microlet/proto/microlet/prober/v1"
	"github.com/microlet/microlet/services/prober/internal/worker"
)

// Metrics are the prober's: two with the kubelet's names and labels, which go with their pod.
type Metrics struct {
	total    *prometheus.CounterVec
	duration *prometheus.HistogramVec
	notRun   prometheus.Counter
}

// NewMetrics registers the metrics.
func NewMetrics(r prometheus.Registerer) *Metrics {
	m := &Metrics{
		total: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "prober_probe_total",
			Help: "Cumulative number of a liveness, readiness or startup probe for a container by result.",
		}, []string{"probe_type", "result", "container", "pod", "namespace", "pod_uid"}),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "prober_probe_duration_seconds",
			Help:    "Duration in seconds for a probe response.",
			Buckets: prometheus.DefBuckets,
		}, []string{"probe_type", "container", "pod", "namespace"}),
		notRun: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "microlet_prober_not_run_total",
			Help: "Probes that no process could run, such as while podsync or a plugin restarted. They are run again " +
				"and count as no failure.",
		}),
	}
	r.MustRegister(m.total, m.duration, m.notRun)
	return m
}

// counters are the metrics of one probe.
type counters struct {
	m        *Metrics
	total    prometheus.Labels
	duration prometheus.Labels
}

func (m *Metrics) of(p *v1.Pod, container string, kind worker.Kind) counters {
	return counters{
		m: m,
		total: prometheus.Labels{
			"probe_type": kind.Title(),
			"container":  container,
			"pod":        p.Name,
			"namespace":  p.Namespace,
			"pod_uid":    string(p.UID),
		},
		duration: prometheus.Labels{
			"probe_type": kind.Title(),
			"container":  container,
			"pod":        p.Name,
			"namespace":  p.Namespace,
		},
	}
}

// count counts one probe; the time of a failed one is no response's.
func (c *counters) count(o worker.Outcome, took time.Duration) {
	result := "failed"
	if o == proberv1.Outcome_OUTCOME_SUCCESS {
		result = "successful"
		c.m.duration.With(c.duration).Observe(took.Seconds())
	}
	labels := maps.Clone(c.total)
	labels["result"] = result
	c.m.total.With(labels).Inc()
}

// forget takes the probe's metrics away.
func (c *counters) forget() {
	c.m.total.DeletePartialMatch(c.total)
	c.m.duration.Delete(c.duration)
}
