package devices

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics have the kubelet's names and buckets.
type metrics struct {
	registrations *prometheus.CounterVec
	allocations   *prometheus.HistogramVec
}

func newMetrics(r prometheus.Registerer) *metrics {
	m := &metrics{
		registrations: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "kubelet_device_plugin_registration_total",
			Help: "Registrations of device plugins. Broken down by resource name.",
		}, []string{"resource_name"}),
		allocations: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "kubelet_device_plugin_alloc_duration_seconds",
			Help: "How long device plugins took to answer Allocate. Broken down by resource name.",
			// These are the kubelet's.
			Buckets: prometheus.DefBuckets,
		}, []string{"resource_name"}),
	}
	if r != nil {
		r.MustRegister(m.registrations, m.allocations)
	}
	return m
}

func (m *metrics) allocated(resource string, began time.Time) {
	m.allocations.WithLabelValues(resource).Observe(time.Since(began).Seconds())
}
