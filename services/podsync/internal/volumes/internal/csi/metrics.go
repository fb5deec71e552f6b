package csi

import (
	"github.com/prometheus/client_golang/prometheus"
)

// newSeconds returns the kubelet's metric of calls.
func newSeconds(metrics prometheus.Registerer) *prometheus.HistogramVec {
	seconds := prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name:    "csi_operations_seconds",
		Help:    "Container Storage Interface operation duration with gRPC error code status total.",
		Buckets: []float64{.1, .25, .5, 1, 2.5, 5, 10, 15, 25, 50, 120, 300, 600},
	}, []string{"driver_name", "method_name", "grpc_status_code", "migrated"})
	if metrics != nil {
		metrics.MustRegister(seconds)
	}
	return seconds
}
