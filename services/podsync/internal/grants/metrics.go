package grants

import "github.com/prometheus/client_golang/prometheus"

type metrics struct{ allocations, preparations *prometheus.CounterVec }

func newMetrics(r prometheus.Registerer) metrics {
	m := metrics{
		allocations: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "microlet_podsync_allocations_total",
			Help: "Questions to the service resources for the devices of a pod, by result: granted, rejected, waits for a " +
				"plugin, unavailable (no answer), unknown (not asked, since it is not known what others hold).",
		}, []string{"result"}),
		preparations: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "microlet_podsync_device_preparations_total",
			Help: "Preparations of the devices of containers before their start, by result (ok, error).",
		}, []string{"result"}),
	}
	r.MustRegister(m.allocations, m.preparations)
	return m
}

func (m metrics) decided(result string) { m.allocations.WithLabelValues(result).Inc() }

func (m metrics) prepared(err error) {
	result := "ok"
	if err != nil {
		result = "error"
	}
	m.preparations.WithLabelValues(result).Inc()
}
