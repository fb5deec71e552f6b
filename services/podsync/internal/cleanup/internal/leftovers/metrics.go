package leftovers

import "github.com/prometheus/client_golang/prometheus"

// Metrics of the clean-up: the kubelet's where it has one.
type Metrics struct {
	orphans               prometheus.Counter
	volumes, volumeErrors prometheus.Gauge
	removed               *prometheus.CounterVec
}

// NewMetrics registers the clean-up's metrics; a nil registerer leaves them unregistered.
func NewMetrics(r prometheus.Registerer) *Metrics {
	m := &Metrics{
		orphans: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "kubelet_orphaned_runtime_pods_total",
			Help: "Pods found running in the container runtime that no worker looked after.",
		}),
		volumes: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "kubelet_orphan_pod_cleaned_volumes",
			Help: "Pods without a worker whose volumes were removed since the last clean-up began.",
		}),
		volumeErrors: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "kubelet_orphan_pod_cleaned_volumes_errors",
			Help: "Pods without a worker whose volumes the last attempt could not remove.",
		}),
		removed: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "microlet_podsync_collected_total",
			Help: "What clean-up removed because nothing needed it: container, sandbox, log folder, log link or cgroup.",
		}, []string{"kind"}),
	}
	if r != nil {
		r.MustRegister(m.orphans, m.volumes, m.volumeErrors, m.removed)
	}
	return m
}
