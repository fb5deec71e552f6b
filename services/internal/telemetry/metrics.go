package telemetry

import (
	"runtime"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
)

// Version of microlet. A build sets it with -ldflags "-X …/telemetry.Version=v1.2.3".
var Version = "v0.0.0-devel"

// NewRegistry returns a registry with the process's own figures: Go's runtime, the process, the log
// lines that were dropped, and microlet_build_info with the service's name.
func NewRegistry(service string) *prometheus.Registry {
	r := prometheus.NewRegistry()
	build := prometheus.NewGauge(prometheus.GaugeOpts{
		Name:        "microlet_build_info",
		Help:        "Always 1; the labels say what runs.",
		ConstLabels: prometheus.Labels{"service": service, "version": Version, "goversion": runtime.Version()},
	})
	build.Set(1)
	dropped := prometheus.NewCounterFunc(prometheus.CounterOpts{
		Name: "microlet_log_writes_dropped_total",
		Help: "Log lines dropped because the reader of the log did not keep up.",
	}, func() float64 {
		if w := ProcessWriter(); w != nil {
			return float64(w.Dropped())
		}
		return 0
	})
	r.MustRegister(
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		build, dropped,
	)
	return r
}
