// Package relist lists the runtime for podsync while pleg does not.
//
// If pleg is silent, hangs or is down, if its relists fail, or if the bus between them is down, this loop lists the
// runtime every 5 s and wakes the workers of pods that have changed. So podsync notices an exit within the silence
// allowed to pleg plus one period.
//
// A hint that pleg publishes while podsync has no connection to the bus is lost. So the loop also looks once after each
// connect, whichever side has lost a message.
package relist

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/microlet/microlet/services/internal/logkey"
	"github.com/microlet/microlet/services/internal/service"
	"github.com/microlet/microlet/services/podsync/internal/cri/internal/plegwatch"
)

// The loop's times.
const (
	// Period between two looks while pleg is silent.
	Period = 5 * time.Second
	// Silence of pleg after which podsync looks itself.
	Silence = 6 * time.Second

	check   = time.Second
	timeout = 10 * time.Second
	// settle is how long after a connect the loop looks: the bus then passes hints on to this connection.
	settle = time.Second
)

// Runtime lists what runs: per pod a digest that changes with the pod's sandboxes and containers.
type Runtime interface {
	Digests(ctx context.Context) (map[types.UID]string, error)
}

// Workers know what was last seen of each pod.
type Workers interface {
	// Seen returns the digest of each pod's last read state.
	Seen() map[types.UID]string
	// Wake makes the pod's worker look again.
	Wake(uid types.UID, reason string)
}

// Relister is the loop.
type Relister struct {
	Runtime Runtime
	Workers Workers
	// LastProof is when pleg last proved that it watches the runtime; zero if it never did.
	LastProof func() time.Time
	Log       *slog.Logger
	// Relists counts the looks.
	Relists prometheus.Counter

	looking bool
	// due is when the look after the last connect is due; nil if there was a look since.
	due atomic.Pointer[time.Time]
}

// Start follows pleg on the bus, and relists while pleg is silent. It returns what is known of pleg.
func Start(s *service.Service, runtime Runtime, workers Workers) *plegwatch.Liveness {
	pleg := plegwatch.Watch(s.Bus, workers)
	r := &Relister{
		Runtime: runtime, Workers: workers, LastProof: pleg.Last, Log: s.Log, Relists: newCounter(s.Metrics),
	}
	s.Bus.OnConnect(r.connected)
	s.Go("relist", r.Run)
	return pleg
}

// connected notes a new connection to the bus.
func (r *Relister) connected() {
	due := time.Now().Add(settle)
	r.due.Store(&due)
}

// Run looks when it must, until ctx ends.
func (r *Relister) Run(ctx context.Context) error {
	ticker := time.NewTicker(check)
	defer ticker.Stop()
	var looked time.Time
	began := time.Now() // pleg gets as long to give its first proof
	for {
		select {
		case <-ctx.Done():
			return nil
		case now := <-ticker.C:
			proof := r.LastProof()
			if proof.Before(began) {
				proof = began
			}
			silent := now.Sub(proof) > Silence
			r.logChange(silent)
			due := r.due.Load()
			if (silent || due != nil && !now.Before(*due)) && now.Sub(looked) >= Period {
				looked = now
				if r.look(ctx) {
					r.due.CompareAndSwap(due, nil)
				}
			}
		}
	}
}

func (r *Relister) logChange(silent bool) {
	if silent == r.looking {
		return
	}
	r.looking = silent
	if silent {
		r.Log.Warn("pleg does not look at the runtime, relisting here", "period", Period)
	} else {
		r.Log.Info("pleg looks again")
	}
}

// look wakes the workers of pods that have changed. It reports whether the runtime answered.
func (r *Relister) look(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	r.Relists.Inc()
	now, err := r.Runtime.Digests(ctx)
	if err != nil {
		r.Log.Error("relist failed", logkey.Err, err)
		return false
	}
	for uid, seen := range r.Workers.Seen() {
		if now[uid] != seen {
			r.Workers.Wake(uid, "relist")
		}
	}
	return true
}

// newCounter registers the counter of looks.
func newCounter(r prometheus.Registerer) prometheus.Counter {
	c := prometheus.NewCounter(prometheus.CounterOpts{
		Name: "microlet_podsync_relists_total",
		Help: "Relists that podsync did itself: while pleg was silent or failed to relist, and after each connect to the " +
			"bus.",
	})
	r.MustRegister(c)
	return c
}
