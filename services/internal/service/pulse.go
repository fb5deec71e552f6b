package service

import (
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Pulse counts the rounds of a service's own main loop. The loop calls Turn at least every 2 s, even if it has nothing
// to do. The watchdog and the heartbeat depend on it. It is safe for concurrent use.
type Pulse struct {
	turns atomic.Uint64
	base  time.Time
	last  atomic.Int64 // nanoseconds since base, by the monotonic clock
}

// NewPulse returns a pulse with a round that counts as done now.
func NewPulse() *Pulse { return &Pulse{base: time.Now()} }

// Turn records one round of the loop.
func (p *Pulse) Turn() {
	p.last.Store(int64(time.Since(p.base)))
	p.turns.Add(1)
}

// Turns is the number of rounds since the start.
func (p *Pulse) Turns() uint64 { return p.turns.Load() }

// Idle is the time since the last round, or since the start.
func (p *Pulse) Idle() time.Duration {
	return time.Since(p.base) - time.Duration(p.last.Load())
}

func (s *Service) registerMetrics() {
	s.Metrics.MustRegister(
		prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: "microlet_pulse_turns_total",
			Help: "Rounds of the service's own main loop.",
		}, func() float64 { return float64(s.Pulse.Turns()) }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "microlet_pulse_idle_seconds",
			Help: "Time since the last round of the service's main loop.",
		}, func() float64 { return s.Pulse.Idle().Seconds() }),
	)
}
