package volumes

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/microlet/microlet/services/internal/diskusage"
)

// diskMetrics registers what is counted of the measuring of folders.
func diskMetrics(r prometheus.Registerer) diskusage.Metrics {
	duration := prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name:    "kubelet_volume_metric_collection_duration_seconds",
		Help:    "Duration in seconds to calculate volume stats",
		Buckets: prometheus.DefBuckets,
	}, []string{"metric_source"})
	m := diskusage.Metrics{
		Entries: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "microlet_stats_disk_entries_total",
			Help: "Entries of directories that were looked at.",
		}),
		Unread: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "microlet_stats_disk_unread_total",
			Help: "Directories that a figure leaves out, because they could not be read or are too deep.",
		}),
		Walks: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "microlet_stats_disk_walks_total",
			Help: "Walks through directories, by how they ended.",
		}, []string{"result"}),
		Children: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "microlet_stats_disk_children",
			Help: "Child processes that measure directories. An abandoned one was killed, and the kernel has not let it end.",
		}, []string{"state"}),
		// The kubelet's name of a walk of its own, as against quotas.
		Duration: duration.WithLabelValues("du"),
	}
	r.MustRegister(m.Entries, m.Unread, m.Walks, m.Children, duration)
	return m
}

// oldestMetric registers the age of the oldest figure.
func oldestMetric(r prometheus.Registerer, oldest func() float64) {
	r.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "microlet_stats_disk_oldest_figure_seconds",
		Help: "Age of the oldest figure of a directory.",
	}, oldest))
}
