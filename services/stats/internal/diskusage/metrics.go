package diskusage

import "github.com/prometheus/client_golang/prometheus"

// How a walk ended, as the metric has it.
const (
	resultDone   = "done"
	resultGone   = "gone"
	resultFailed = "failed"
	resultHung   = "hung"
)

type metrics struct {
	entries  prometheus.Counter
	unread   prometheus.Counter
	walks    *prometheus.CounterVec
	duration prometheus.Observer
	children *prometheus.GaugeVec
}

func newMetrics(r prometheus.Registerer, oldest func() float64) *metrics {
	duration := prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name:    "kubelet_volume_metric_collection_duration_seconds",
		Help:    "Duration in seconds to calculate volume stats",
		Buckets: prometheus.DefBuckets,
	}, []string{"metric_source"})
	m := &metrics{
		entries: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "microlet_stats_disk_entries_total",
			Help: "Entries of directories that were looked at.",
		}),
		unread: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "microlet_stats_disk_unread_total",
			Help: "Directories that a figure leaves out, because they could not be read or are too deep.",
		}),
		walks: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "microlet_stats_disk_walks_total",
			Help: "Walks through directories, by how they ended.",
		}, []string{"result"}),
		children: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "microlet_stats_disk_children",
			Help: "Child processes that measure directories. An abandoned one was killed, and the kernel has not let it end.",
		}, []string{"state"}),
		// The kubelet's name of a walk of its own, as against quotas.
		duration: duration.WithLabelValues("du"),
	}
	for _, result := range []string{resultDone, resultGone, resultFailed, resultHung} {
		m.walks.WithLabelValues(result)
	}
	m.show(0, 0)
	r.MustRegister(m.entries, m.unread, m.walks, m.children, duration, prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "microlet_stats_disk_oldest_figure_seconds",
		Help: "Age of the oldest figure of a directory.",
	}, oldest))
	return m
}

// show sets how many children there are.
func (m *metrics) show(running, abandoned int) {
	m.children.WithLabelValues("running").Set(float64(running))
	m.children.WithLabelValues("abandoned").Set(float64(abandoned))
}
