package relist

import "github.com/prometheus/client_golang/prometheus"

// metrics has the kubelet's names where the kubelet has the metric.
type metrics struct {
	duration, interval, latency            prometheus.Histogram
	lastSeen, period, streaming            prometheus.Gauge
	discarded, connected, connectionErrors prometheus.Counter
	failures                               prometheus.Counter
	restarts                               prometheus.Counter
	pods                                   prometheus.Gauge
	containers                             *prometheus.GaugeVec
}

func newMetrics(r prometheus.Registerer) *metrics {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	}
	histogram := func(name, help string) prometheus.Histogram {
		return prometheus.NewHistogram(prometheus.HistogramOpts{Name: name, Help: help, Buckets: prometheus.DefBuckets})
	}
	gauge := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Name: name, Help: help})
	}
	m := &metrics{
		duration: histogram("kubelet_pleg_relist_duration_seconds",
			"Duration in seconds of a relist of all pods."),
		interval: histogram("kubelet_pleg_relist_interval_seconds",
			"Interval in seconds between the beginnings of two relists."),
		latency: histogram("kubelet_evented_pleg_connection_latency_seconds",
			"Age in seconds of a runtime event when it arrives."),
		lastSeen: gauge("kubelet_pleg_last_seen_seconds",
			"Unix time at which the last successful relist began."),
		discarded: counter("kubelet_pleg_discard_events",
			"Runtime events that were dropped because they came faster than they were handled; a relist followed."),
		connected: counter("kubelet_evented_pleg_connection_success_count",
			"Times that the runtime's event stream was opened."),
		connectionErrors: counter("kubelet_evented_pleg_connection_error_count",
			"Times that the runtime's event stream failed or could not be opened."),
		period: gauge("microlet_pleg_relist_period_seconds",
			"Current period between relists in seconds; it grows while the event stream proves right."),
		streaming: gauge("microlet_pleg_streaming", "1 while the runtime's event stream is connected."),
		failures:  counter("microlet_pleg_relist_failures_total", "Relists that failed."),
		pods: gauge("kubelet_running_pods",
			"Number of pods that have a running pod sandbox, as the last relist saw them."),
		containers: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "kubelet_running_containers",
			Help: "Number of containers, by their state, as the last relist saw them.",
		}, []string{"container_state"}),
		restarts: counter("microlet_pleg_stream_restarts_total",
			"Event streams that were closed because a relist saw an exit that they had not reported."),
	}
	r.MustRegister(m.duration, m.interval, m.latency, m.lastSeen, m.discarded, m.connected,
		m.connectionErrors, m.period, m.streaming, m.failures, m.restarts, m.pods, m.containers)
	return m
}

// count counts what the runtime listed.
func (m *metrics) count(s Snapshot) {
	pods, containers := 0, map[State]int{}
	for _, items := range s {
		running := false
		for _, item := range items {
			if item.Sandbox {
				running = running || item.State == Running
			} else {
				containers[item.State]++
			}
		}
		if running {
			pods++
		}
	}
	m.pods.Set(float64(pods))
	for state, name := range map[State]string{
		Created: "created",
		Running: "running",
		Exited:  "exited",
		Unknown: "unknown",
	} {
		m.containers.WithLabelValues(name).Set(float64(containers[state]))
	}
}
