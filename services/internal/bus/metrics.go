package bus

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics are the client's, all "microlet_bus_…".
type metrics struct {
	connected     prometheus.Gauge
	reconnects    prometheus.Counter
	disconnects   prometheus.Counter
	puts          *prometheus.CounterVec
	putErrors     *prometheus.CounterVec
	pending       *prometheus.GaugeVec
	watchRestarts *prometheus.CounterVec
	stale         *prometheus.CounterVec
	rejected      *prometheus.CounterVec
	denied        *prometheus.CounterVec
	strangers     prometheus.Counter
}

func newMetrics(reg prometheus.Registerer) (*metrics, error) {
	const ns, sub = "microlet", "bus"
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: ns, Subsystem: sub, Name: name, Help: help},
			labels)
	}
	m := &metrics{
		connected: prometheus.NewGauge(prometheus.GaugeOpts{Namespace: ns, Subsystem: sub, Name: "connected",
			Help: "1 while there is a connection to the bus."}),
		reconnects: prometheus.NewCounter(prometheus.CounterOpts{
			Namespace: ns,
			Subsystem: sub,
			Name:      "reconnects_total",
			Help:      "Connections to the bus after the first.",
		}),
		disconnects: prometheus.NewCounter(prometheus.CounterOpts{
			Namespace: ns,
			Subsystem: sub,
			Name:      "disconnects_total",
			Help:      "Connections to the bus that were lost.",
		}),
		puts: counter("puts_total", "Puts and deletes that the bus acknowledged.", "bucket"),
		putErrors: counter("put_errors_total", "Puts and deletes that failed and are, unless denied, repeated.",
			"bucket"),
		pending: prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: ns, Subsystem: sub, Name: "pending_puts",
			Help: "Keys whose newest value the bus has not acknowledged."}, []string{"bucket"}),
		watchRestarts: counter("watch_restarts_total",
			"Watches that began again, by reason: reconnect, stalled, slow, error.", "bucket", "reason"),
		stale: counter("stale_keys_dropped_total",
			"Keys dropped because their writer no longer has them and their delete was lost.", "bucket"),
		rejected: counter("entries_rejected_total",
			"Entries that could not be decoded or were signed by a service that does not own their key.", "bucket"),
		denied: counter("denied_total",
			"What the bus's permissions denied this service, by operation: publish, subscribe.", "operation"),
	}
	m.strangers = prometheus.NewCounter(prometheus.CounterOpts{
		Namespace: ns,
		Subsystem: sub,
		Name:      "stranger_connections_total",
		Help:      "Connections to the bus's socket that were given up because a stranger served it.",
	})
	m.denied.WithLabelValues("publish")
	m.denied.WithLabelValues("subscribe")
	if reg == nil {
		return m, nil
	}
	for _, c := range []prometheus.Collector{
		m.connected, m.reconnects, m.disconnects, m.puts, m.putErrors, m.pending, m.watchRestarts, m.stale, m.rejected,
		m.denied, m.strangers,
	} {
		if err := reg.Register(c); err != nil {
			return nil, fmt.Errorf("register the bus client's metrics: %w", err)
		}
	}
	return m, nil
}
