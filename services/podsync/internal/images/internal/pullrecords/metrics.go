package pullrecords

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
)

// What a check came to, as the kubelet counts it.
const (
	resultPolicyAllowed    = "credentialPolicyAllowed"
	resultRecordFound      = "credentialRecordFound"
	resultMustAuthenticate = "mustAuthenticate"
	resultError            = "error"
)

// metrics are the kubelet's.
type metrics struct {
	checks           *prometheus.CounterVec
	intents, records prometheus.Gauge
}

func newMetrics(reg prometheus.Registerer) (*metrics, error) {
	m := &metrics{
		checks: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "kubelet_imagemanager_image_mustpull_checks_total",
			Help: "Counter for how many times kubelet checked whether credentials need to be re-verified to access an image",
		}, []string{"result"}),
		intents: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "kubelet_imagemanager_ondisk_pullintents", Help: "Number of ImagePullIntents stored on disk.",
		}),
		records: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "kubelet_imagemanager_ondisk_pulledrecords", Help: "Number of ImagePulledRecords stored on disk.",
		}),
	}
	if reg == nil {
		return m, nil
	}
	for _, c := range []prometheus.Collector{m.checks, m.intents, m.records} {
		if err := reg.Register(c); err != nil {
			return nil, fmt.Errorf("register metrics of image pull records: %w", err)
		}
	}
	return m, nil
}
