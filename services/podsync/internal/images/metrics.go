package images

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics are the kubelet's of image pulls, and two of our own.
type metrics struct {
	duration *prometheus.HistogramVec
	requests *prometheus.CounterVec
	waiting  prometheus.Gauge
	undone   prometheus.Counter
}

func newMetrics(reg prometheus.Registerer) (*metrics, error) {
	m := &metrics{
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "kubelet_image_pull_duration_seconds", Help: "Duration in seconds to pull an image.",
			Buckets: []float64{1, 5, 10, 20, 30, 60, 120, 180, 240, 300, 360, 480, 600, 900, 1200, 1800, 2700, 3600},
		}, []string{"image_size_in_bytes"}),
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "kubelet_image_manager_ensure_image_requests_total",
			Help: "Number of ensure-image requests processed by the kubelet.",
		}, []string{"pull_policy", "present_locally", "pull_required"}),
		waiting: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "microlet_image_pulls_waiting", Help: "Image pulls that wait for others to end.",
		}),
		undone: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "microlet_image_pulls_undone_total",
			Help: "Images that were removed after their pull, because the name of their user is too long.",
		}),
	}
	if reg == nil {
		return m, nil
	}
	for _, c := range []prometheus.Collector{m.duration, m.requests, m.waiting, m.undone} {
		if err := reg.Register(c); err != nil {
			return nil, fmt.Errorf("register metrics of image pulls: %w", err)
		}
	}
	return m, nil
}

func (m *metrics) request(t *task) {
	known := func(b *bool) string {
		if b == nil {
			return "unknown"
		}
		return strconv.FormatBool(*b)
	}
	m.requests.WithLabelValues(strings.ToLower(string(t.policy)), known(t.present), known(t.required)).Inc()
}

func (m *metrics) pulled(size uint64, took time.Duration) {
	m.duration.WithLabelValues(sizeBucket(size)).Observe(took.Seconds())
}

const (
	mib = 1 << 20
	gib = 1 << 30
)

// sizes are the kubelet's classes of image sizes, largest first.
var sizes = []struct {
	above uint64
	label string
}{
	{100 * gib, "GT100GB"}, {60 * gib, "60GB-100GB"}, {40 * gib, "40GB-60GB"}, {30 * gib, "30GB-40GB"},
	{20 * gib, "20GB-30GB"}, {10 * gib, "10GB-20GB"}, {5 * gib, "5GB-10GB"}, {gib, "1GB-5GB"},
	{500 * mib, "500MB-1GB"}, {100 * mib, "100MB-500MB"}, {10 * mib, "10MB-100MB"}, {0, "0-10MB"},
}

func sizeBucket(size uint64) string {
	for _, s := range sizes {
		if size > s.above {
			return s.label
		}
	}
	return "N/A"
}
