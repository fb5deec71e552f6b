package diskusage

import (
	"os"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
)

func TestMain(m *testing.M) {
	if RunChild() { // the children are of this binary
		return
	}
	os.Exit(m.Run())
}

// testMetrics are those of a service.
func testMetrics() Metrics {
	return Metrics{
		Entries:  prometheus.NewCounter(prometheus.CounterOpts{}),
		Unread:   prometheus.NewCounter(prometheus.CounterOpts{}),
		Walks:    prometheus.NewCounterVec(prometheus.CounterOpts{}, []string{"result"}),
		Duration: prometheus.NewHistogram(prometheus.HistogramOpts{}),
		Children: prometheus.NewGaugeVec(prometheus.GaugeOpts{}, []string{"state"}),
	}
}
