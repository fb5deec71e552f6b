package pods

import (
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	crierrors "k8s.io/cri-api/pkg/errors"

	"github.com/microlet/microlet/services/podsync/internal/cri/runtime"
	"github.com/microlet/microlet/services/podsync/internal/pod/decide"
)

// Metrics are the workers' own.
type Metrics struct {
	Wakes   *prometheus.CounterVec
	Refused prometheus.Counter
	// removalFailures counts failed removals. Nothing waits for them, and they are tried again.
	removalFailures *prometheus.CounterVec
	syncs           *prometheus.HistogramVec

	sandboxes, sandboxErrors    prometheus.Counter
	containers, containerErrors *prometheus.CounterVec

	userNamespaces, userNamespaceErrors prometheus.Counter

	imageVolumes, imageVolumesMounted, imageVolumeErrors prometheus.Counter
}

// NewMetrics registers the workers' metrics.
func NewMetrics(r prometheus.Registerer) *Metrics {
	m := &Metrics{
		Wakes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "microlet_podsync_wakes_total", Help: "Wake-ups of pod workers, by who woke them.",
		}, []string{"reason"}),
		Refused: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "microlet_podsync_refused_total",
			Help: "Pods that were not started because they use what is not built.",
		}),
		removalFailures: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "microlet_podsync_removal_failures_total",
			Help: "Removals of what is left of containers and pods that failed and are repeated, by what stays.",
		}, []string{"object"}),
		syncs: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "kubelet_pod_worker_duration_seconds",
			Help:    "Duration in seconds to sync a single pod, by operation type.",
			Buckets: prometheus.DefBuckets,
		}, []string{"operation_type"}),
		sandboxes: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "kubelet_started_pods_total",
			Help: "Cumulative number of pod sandboxes that were to be started, failures included.",
		}),
		sandboxErrors: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "kubelet_started_pods_errors_total",
			Help: "Cumulative number of pod sandboxes that could not be started.",
		}),
		containers: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "kubelet_started_containers_total",
			Help: "Cumulative number of containers that were to be started, failures included.",
		}, []string{"container_type"}),
		containerErrors: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "kubelet_started_containers_errors_total",
			Help: "Cumulative number of containers that could not be started, by the reason that their status shows.",
		}, []string{"container_type", "code"}),
		userNamespaces: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "kubelet_started_user_namespaced_pods_total",
			Help: "Cumulative number of pod sandboxes with a user namespace that were to be started, failures included.",
		}),
		userNamespaceErrors: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "kubelet_started_user_namespaced_pods_errors_total",
			Help: "Cumulative number of starts of pods with a user namespace in which a sandbox or container failed to start.",
		}),
		imageVolumes: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "kubelet_image_volume_requested_total", Help: "Number of requested image volumes.",
		}),
		imageVolumesMounted: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "kubelet_image_volume_mounted_succeed_total", Help: "Number of successful image volume mounts.",
		}),
		imageVolumeErrors: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "kubelet_image_volume_mounted_errors_total", Help: "Number of failed image volume mounts.",
		}),
	}
	r.MustRegister(m.Wakes, m.Refused, m.removalFailures, m.syncs, m.sandboxes, m.sandboxErrors, m.containers,
		m.containerErrors, m.userNamespaces, m.userNamespaceErrors, m.imageVolumes, m.imageVolumesMounted,
		m.imageVolumeErrors)
	return m
}

func (m *Metrics) observeSync(p phase, began time.Time) {
	m.syncs.WithLabelValues(p.String()).Observe(time.Since(began).Seconds())
}

func (m *Metrics) countSandbox(err error) {
	m.sandboxes.Inc()
	if err != nil {
		m.sandboxErrors.Inc()
	}
}

// countUserNamespace counts a start of a pod with users of its own, from the sandbox on.
func (m *Metrics) countUserNamespace(err error) {
	m.userNamespaces.Inc()
	if err != nil {
		m.userNamespaceErrors.Inc()
	}
}

// countImageVolumes counts the image volumes of a container that was created, or was not with this error. The runtime's
// message begins with CRI's own word if a mount was the cause.
func (m *Metrics) countImageVolumes(n int, err error) {
	m.imageVolumes.Add(float64(n))
	if err != nil && strings.HasPrefix(runtime.Message(err), crierrors.ErrImageVolumeMountFailed.Error()) {
		m.imageVolumeErrors.Add(float64(n))
		return
	}
	m.imageVolumesMounted.Add(float64(n))
}

// countStart counts a container that was to be started, and the reason if it was not.
func (m *Metrics) countStart(s *decide.Start, err error, reason string) {
	kind := "container"
	switch {
	case s.Init:
		kind = "init_container"
	case s.Ephemeral:
		kind = "ephemeral_container"
	}
	m.containers.WithLabelValues(kind).Inc()
	if err != nil {
		m.containerErrors.WithLabelValues(kind, reason).Inc()
	}
}
