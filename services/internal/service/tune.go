package service

import (
	"os"
	"runtime"
	"runtime/debug"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
)

const (
	// gcPercent trades a little processor for memory: a service's live heap is a few MiB, and there
	// are many services on a node.
	gcPercent = 50

	// maxProcs bounds the processors a service computes on. Each brings caches of its own, and a
	// node agent's services wait more than they compute.
	maxProcs = 4
)

var tuneOnce sync.Once

// tuneRuntime sets what GOGC and GOMAXPROCS have not.
func tuneRuntime() {
	tuneOnce.Do(func() {
		if os.Getenv("GOGC") == "" {
			debug.SetGCPercent(gcPercent)
		}
		if os.Getenv("GOMAXPROCS") == "" && runtime.GOMAXPROCS(0) > maxProcs {
			runtime.GOMAXPROCS(maxProcs)
		}
	})
}

func (s *Service) registerMetrics() {
	s.Metrics.MustRegister(
		prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: "microlet_pulse_turns_total",
			Help: "Turns of the service's own main loop.",
		}, func() float64 { return float64(s.Pulse.Turns()) }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "microlet_pulse_idle_seconds",
			Help: "Time since the service's main loop turned last.",
		}, func() float64 { return s.Pulse.Idle().Seconds() }),
	)
}
