package admission

import (
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/util/sets"
)

type metrics struct {
	rejections, preemptions, waits *prometheus.CounterVec
}

func newMetrics(r prometheus.Registerer) *metrics {
	m := &metrics{
		rejections: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "kubelet_admission_rejections_total",
			Help: "Cumulative number pod admission rejections by the Kubelet.",
		}, []string{"reason"}),
		preemptions: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "kubelet_preemptions", Help: "Cumulative number of pod preemptions by preemption resource",
		}, []string{"preemption_signal"}),
		waits: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "microlet_podsync_admission_waits_total",
			Help: "Pods that waited for the place of pods that their sources had removed, by whether these ended in time.",
		}, []string{"outcome"}),
	}
	r.MustRegister(m.rejections, m.preemptions, m.waits)
	return m
}

// countedReasons have a label value of their own, as with the kubelet; the names of
// extended resources would make for too many.
var countedReasons = sets.New(
	"AppArmor", "PodOSSelectorNodeLabelDoesNotMatch", "PodOSNotSupported", "SupplementalGroupsPolicyNotSupported",
	"UnexpectedAdmissionError", "OutOfcpu", "OutOfmemory", "OutOfephemeral-storage", "OutOfpods",
	"PodLevelResourcesNotSupported", "PodFeatureUnsupported", "Evicted", "SysctlForbidden",
	"VolumeAttachmentLimitExceeded",
)

func (m *metrics) rejected(reason string) {
	switch {
	case countedReasons.Has(reason):
	case strings.HasPrefix(reason, "OutOf"):
		reason = "OutOfExtendedResources"
	default:
		reason = "Other"
	}
	m.rejections.WithLabelValues(reason).Inc()
}
