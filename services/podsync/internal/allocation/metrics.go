package allocation

import (
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"

	"github.com/microlet/microlet/services/internal/podutil"
)

type metrics struct {
	requested, infeasible, accepted *prometheus.CounterVec
	pending                         *prometheus.GaugeVec
	inProgress                      prometheus.Gauge
	duration, deferred              *prometheus.HistogramVec
}

func newMetrics(r prometheus.Registerer) *metrics {
	m := &metrics{
		requested: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "kubelet_container_requested_resizes_total",
			Help: "Resizes of containers that were asked for. Each resource of a container counts. The operation is add, " +
				"remove, increase or decrease.",
		}, []string{"resource", "requirement", "operation"}),
		infeasible: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "kubelet_pod_infeasible_resizes_total", Help: "Resizes of pods that the node cannot do.",
		}, []string{"reason_detail"}),
		accepted: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "kubelet_pod_deferred_accepted_resizes_total",
			Help: "Resizes that were deferred and then granted, by what made podsync decide again.",
		}, []string{"retry_trigger"}),
		pending: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "kubelet_pod_pending_resizes",
			Help: "Resizes of pods that wait or that the node cannot do, by the reason (deferred, infeasible) and the pod's " +
				"priority.",
		}, []string{"reason", "priority_bucket"}),
		inProgress: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "kubelet_pod_in_progress_resizes", Help: "Resizes of pods that are granted and not carried out yet.",
		}),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "kubelet_pod_resize_duration_milliseconds", Help: "How long it took to carry out a resize of a pod.",
			Buckets: []float64{10, 50, 100, 500, 1000, 2000, 5000, 10000, 20000, 30000, 60000, 120000, 300000, 600000},
		}, []string{"success"}),
		deferred: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "kubelet_pod_deferred_resize_duration_seconds",
			Help: "How long resizes were deferred, by how that ended (accepted, reverted, terminated) and the pod's priority.",
			Buckets: []float64{
				5, 10, 15, 20, 30, 45, 60, 90, 120, 150, 180, 300, 600, 1200, 1800, 3600,
			},
		}, []string{"resolution", "priority_bucket"}),
	}
	r.MustRegister(m.requested, m.infeasible, m.accepted, m.pending, m.inProgress, m.duration, m.deferred)
	return m
}

// resolution is how the wait of a resize ended.
type resolution string

const (
	accepted   resolution = "accepted"
	reverted   resolution = "reverted"
	terminated resolution = "terminated"
)

// request counts what a version of a pod asks for that the one before did not.
func (m *metrics) request(before, p *v1.Pod) {
	for c := range podutil.Containers(&p.Spec) {
		old := podutil.Container(&before.Spec, c.Name)
		if old == nil {
			continue
		}
		for _, name := range []v1.ResourceName{v1.ResourceMemory, v1.ResourceCPU} {
			m.requestOf(name, "requests", old.Resources.Requests[name], c.Resources.Requests[name])
			m.requestOf(name, "limits", old.Resources.Limits[name], c.Resources.Limits[name])
		}
	}
}

func (m *metrics) requestOf(name v1.ResourceName, requirement string, before, now resource.Quantity) {
	operation := ""
	switch order := now.Cmp(before); {
	case order == 0:
		return
	case now.IsZero():
		operation = "remove"
	case before.IsZero():
		operation = "add"
	case order < 0:
		operation = "decrease"
	default:
		operation = "increase"
	}
	m.requested.WithLabelValues(string(name), requirement, operation).Inc()
}

// countPending adds to the number of those that wait as the pod does.
func (m *metrics) countPending(e *entry, n float64) {
	if e.pending != nil {
		m.pending.WithLabelValues(pendingReason(e.pending), e.bucket).Add(n)
	}
}

// pendingReason is the reason of a condition as a label. A condition may come from the API, where anybody who may
// change a pod's status has written it.
func pendingReason(c *v1.PodCondition) string {
	if c.Reason == v1.PodReasonInfeasible {
		return strings.ToLower(v1.PodReasonInfeasible)
	}
	return strings.ToLower(v1.PodReasonDeferred)
}

// resolved observes how long the pod's resize was deferred.
func (m *metrics) resolved(e *entry, how resolution) {
	if e.pending.Reason != v1.PodReasonDeferred || e.pending.LastTransitionTime.IsZero() {
		return
	}
	m.deferred.WithLabelValues(string(how), e.bucket).
		Observe(time.Since(e.pending.LastTransitionTime.Time).Seconds())
}

// observe observes how long the worker took, if it had begun.
func (m *metrics) observe(e *entry, success bool) {
	if !e.began.IsZero() {
		m.duration.WithLabelValues(strconv.FormatBool(success)).Observe(float64(time.Since(e.began).Milliseconds()))
	}
	e.began = time.Time{}
}

// priorityBucket is the priority of a pod as a label.
func priorityBucket(p *v1.Pod) string {
	switch priority := corev1helpers.PodPriority(p); {
	case priority >= 2000000000:
		return "system-critical"
	case priority >= 100000:
		return "high"
	case priority > 0:
		return "medium"
	case priority == 0:
		return "normal"
	case priority > -1000:
		return "low"
	default:
		return "very-low"
	}
}
