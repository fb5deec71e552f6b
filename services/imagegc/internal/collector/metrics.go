package collector

import "github.com/prometheus/client_golang/prometheus"

type metrics struct {
	collected *prometheus.CounterVec
	failed    prometheus.Counter
	images    prometheus.Gauge
}

func newMetrics(r prometheus.Registerer) metrics {
	m := metrics{
		collected: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "kubelet_image_garbage_collected_total",
			Help: "Total number of images garbage collected by the kubelet, whether through disk usage or image age.",
		}, []string{"reason"}),
		failed: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "microlet_imagegc_removals_failed_total",
			Help: "Images that the runtime did not remove.",
		}),
		images: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "microlet_imagegc_images",
			Help: "Images on the node.",
		}),
	}
	r.MustRegister(m.collected, m.failed, m.images)
	for _, reason := range []string{becauseOfAge, becauseOfSpace} {
		m.collected.WithLabelValues(reason)
	}
	return m
}
