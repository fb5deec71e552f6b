package manager

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"

	"github.com/microlet/microlet/services/evictor/internal/reading"
	"github.com/microlet/microlet/services/evictor/internal/signal"
)

// Condition is one pressure condition.
type Condition struct {
	Type   v1.NodeConditionType
	Status v1.ConditionStatus
	// LastMet is when a threshold of it was met last; zero if never.
	LastMet time.Time
	// Problem is why the status is unknown.
	Problem string
}

// Pressure is what is reported.
type Pressure struct {
	Conditions []Condition
	Last       LastEviction
}

// report reports the conditions. One of which no configured signal can be read is unknown.
func (m *Manager) report(now time.Time) {
	p := Pressure{Last: m.last}
	for _, c := range signal.Conditions() {
		one := Condition{Type: c, Status: v1.ConditionFalse, LastMet: m.tracker.LastMet(c)}
		switch {
		case m.tracker.Under(c, now):
			one.Status = v1.ConditionTrue
		default:
			if s, err := m.blind(c); err != nil {
				one.Status, one.Problem = v1.ConditionUnknown, string(s)+": "+err.Error()
			}
		}
		p.Conditions = append(p.Conditions, one)
	}
	m.o.Report(p)
}

// blind returns why no threshold of the condition can be judged; nil if one can, or if there is none.
func (m *Manager) blind(c v1.NodeConditionType) (s signal.Signal, err error) {
	for _, t := range m.o.Thresholds {
		if t.Signal.Condition() != c {
			continue
		}
		if _, ok := m.seen[t.Signal]; ok {
			return "", nil
		}
		if failed := m.failed[t.Signal]; failed != nil && !reading.Harmless(failed) {
			s, err = t.Signal, failed
		}
	}
	return s, err
}

// Results of the measurement of a pod of which stats says that it exceeds a limit.
const (
	confirmed    = "exceeds"
	contradicted = "does not exceed"
	unmeasured   = "not measured"
)

// Metrics of a Manager.
type Metrics struct {
	confirmations      *prometheus.CounterVec
	evictions, skipped *prometheus.CounterVec
	statsAge           *prometheus.HistogramVec
	stopped            prometheus.Counter
}

// NewMetrics registers them.
func NewMetrics(to prometheus.Registerer) *Metrics {
	m := &Metrics{
		evictions: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "kubelet_evictions", Help: "Cumulative number of pod evictions by eviction signal",
		}, []string{"eviction_signal"}),
		statsAge: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "kubelet_eviction_stats_age_seconds",
			Help:    "Time between when stats are collected, and when pod is evicted based on those stats by eviction signal",
			Buckets: prometheus.DefBuckets,
		}, []string{"eviction_signal"}),
		skipped: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "microlet_evictor_skipped_readings_total",
			Help: "Readings of an eviction signal that failed or could not be true.",
		}, []string{"eviction_signal"}),
		confirmations: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "microlet_evictor_limit_checks_total",
			Help: "Measurements of pods of which stats says that they exceed a limit of local storage, by what they say.",
		}, []string{"result"}),
		stopped: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "microlet_evictor_stopped_evictions_total",
			Help: "Evictions that were stopped because they followed one another too fast.",
		}),
	}
	for _, result := range []string{confirmed, contradicted, unmeasured} {
		m.confirmations.WithLabelValues(result)
	}
	to.MustRegister(m.evictions, m.statsAge, m.skipped, m.stopped, m.confirmations)
	return m
}
