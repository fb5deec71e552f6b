package diskusage

import "github.com/prometheus/client_golang/prometheus"

// How a walk ended, as the metric has it.
const (
	resultDone   = "done"
	resultGone   = "gone"
	resultFailed = "failed"
	resultHung   = "hung"
)

// Metrics are what a Measurer counts, of which its service says the names.
type Metrics struct {
	// Entries of directories are those that were looked at, and Unread the directories that a figure leaves out.
	Entries, Unread prometheus.Counter
	// Walks are counted by their result.
	Walks *prometheus.CounterVec
	// Duration of walks, in seconds.
	Duration prometheus.Observer
	// Children are counted by their state: running, or abandoned.
	Children *prometheus.GaugeVec
}

// begin shows what there is before the first walk.
func (m *Metrics) begin() {
	for _, result := range []string{resultDone, resultGone, resultFailed, resultHung} {
		m.Walks.WithLabelValues(result)
	}
	m.show(0, 0)
}

// show sets how many children there are.
func (m *Metrics) show(running, abandoned int) {
	m.Children.WithLabelValues("running").Set(float64(running))
	m.Children.WithLabelValues("abandoned").Set(float64(abandoned))
}
