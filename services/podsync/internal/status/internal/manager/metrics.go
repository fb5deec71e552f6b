package manager

import (
	"fmt"
	"strconv"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"

	"github.com/microlet/microlet/services/internal/podutil"
)

// managerMetrics are the kubelet's metric of the same name and what that one does not show.
type managerMetrics struct {
	duration   prometheus.Histogram
	patches    prometheus.Counter
	reconciled prometheus.Counter
	failures   *prometheus.CounterVec
	terminated *prometheus.CounterVec
	started    prometheus.Histogram
}

func newMetrics(to prometheus.Registerer, m *Manager) (*managerMetrics, error) {
	mm := &managerMetrics{
		duration: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "kubelet_pod_status_sync_duration_seconds",
			Help: "Time in seconds from the first change of a pod's status that was not written until it is, changes in " +
				"between included.",
			Buckets: []float64{0.010, 0.050, 0.100, 0.500, 1, 5, 10, 20, 30, 45, 60},
		}),
		patches: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "microlet_pod_status_patches_total", Help: "Patches of pod statuses that were sent.",
		}),
		reconciled: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "microlet_pod_status_reconciled_total",
			Help: "Statuses that were written again because the API had another than the wanted one.",
		}),
		failures: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "microlet_pod_status_failures_total",
			Help: "Patches and deletions that failed, by the apiserver's reason; empty if it did not answer.",
		}, []string{"reason"}),
		terminated: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "kubelet_terminated_containers_total", Help: "Cumulative number of container terminations.",
		}, []string{"container_type", "exit_code", "reason"}),
		started: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "kubelet_pod_start_duration_seconds",
			Help: "Duration in seconds from the first status of a pod until it runs: from when it was seen, within its " +
				"first look.",
			Buckets: []float64{0.5, 1, 2, 3, 4, 5, 6, 8, 10, 20, 30, 45, 60, 120, 180, 240, 300, 360, 480, 600, 900,
				1200, 1800, 2700, 3600},
		}),
	}
	if to == nil {
		return mm, nil
	}
	pending := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "microlet_pod_status_pending", Help: "Pods whose newest status or deletion has not arrived.",
	}, func() float64 { return float64(m.Pending()) })
	for _, c := range []prometheus.Collector{mm.duration, mm.patches, mm.reconciled, mm.failures, mm.terminated,
		mm.started, pending} {
		if err := to.Register(c); err != nil {
			return nil, fmt.Errorf("register metrics of pod statuses: %w", err)
		}
	}
	return mm, nil
}

// countTerminations counts the containers that have ended since the status before.
func (mm *managerMetrics) countTerminations(before, now *v1.PodStatus) {
	for _, list := range []struct {
		kind        string
		before, now []v1.ContainerStatus
	}{
		{"init_container", before.InitContainerStatuses, now.InitContainerStatuses},
		{"container", before.ContainerStatuses, now.ContainerStatuses},
		{"ephemeral_container", before.EphemeralContainerStatuses, now.EphemeralContainerStatuses},
	} {
		for i := range list.now {
			ended := list.now[i].State.Terminated
			if ended == nil {
				continue
			}
			if old := podutil.ContainerStatus(list.before, list.now[i].Name); old == nil ||
				old.State.Terminated == nil {
				mm.terminated.WithLabelValues(list.kind, strconv.Itoa(int(ended.ExitCode)), ended.Reason).Inc()
			}
		}
	}
}
