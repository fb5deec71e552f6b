package credentialplugin

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics are the kubelet's. Their label is the name of a plugin, which only the configuration chooses.
type metrics struct {
	errors   *prometheus.CounterVec
	duration *prometheus.HistogramVec
}

// newMetrics registers nothing if reg is nil.
func newMetrics(reg prometheus.Registerer, hash string) (*metrics, error) {
	m := &metrics{
		errors: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "kubelet_credential_provider_plugin_errors_total",
			Help: "Number of errors from credential provider plugin",
		}, []string{"plugin_name"}),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "kubelet_credential_provider_plugin_duration",
			Help:    "Duration of execution in seconds for credential provider plugin",
			Buckets: prometheus.DefBuckets,
		}, []string{"plugin_name"}),
	}
	if reg == nil {
		return m, nil
	}
	info := prometheus.NewGauge(prometheus.GaugeOpts{
		Name:        "kubelet_credential_provider_config_info",
		Help:        "Information about the last applied credential provider configuration with hash as label",
		ConstLabels: prometheus.Labels{"hash": hash},
	})
	info.Set(1)
	for _, c := range []prometheus.Collector{m.errors, m.duration, info} {
		if err := reg.Register(c); err != nil {
			return nil, fmt.Errorf("register metrics of credential plugins: %w", err)
		}
	}
	return m, nil
}
