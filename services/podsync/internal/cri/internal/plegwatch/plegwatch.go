// Package plegwatch knows when pleg last proved that it watches the runtime.
//
// The proofs are pleg's heartbeats, relists and hints. podsync decides from the time of the last proof whether it
// must relist by itself. A pleg proves nothing if its loop hangs, if it does not relist, or if its relists fail.
package plegwatch

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	busv1 "github.com/microlet/microlet/proto/microlet/bus/v1"
	plegv1 "github.com/microlet/microlet/proto/microlet/pleg/v1"
	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/proto/subject"
	"github.com/microlet/microlet/services/internal/bus"
)

// staleRelist is the age from which pleg's last relist proves nothing: its slowest period
// and then some.
const staleRelist = 15 * time.Second

// Workers wake the workers of pods.
type Workers interface {
	Wake(uid types.UID, reason string)
}

// Liveness is pleg's. Its methods may be called from any goroutine.
type Liveness struct {
	mu            sync.Mutex
	turns         uint64
	generation    uint64 // of the last relist that succeeded
	alive, relist time.Time
}

// Watch follows pleg on the bus, and wakes the workers of the pods that it hints at.
func Watch(b *bus.Client, workers Workers) *Liveness {
	l := &Liveness{}
	// The views call back once the client runs, and so after these assignments.
	var beats *bus.View[*busv1.Heartbeat]
	beats = bus.Watch[busv1.Heartbeat](b, subject.Heartbeats, subject.HeartbeatKeys(role.PLEG), func(key string) {
		if beat, ok := beats.Get(key); ok {
			l.beat(beat.GetTurns())
		}
	})
	var relists *bus.View[*plegv1.Relist]
	relists = bus.Watch[plegv1.Relist](b, subject.Runtime, subject.RuntimeRelist, func(key string) {
		if r, ok := relists.Get(key); ok {
			l.relisted(r)
		}
	})
	b.Subscribe(subject.LifecycleEvents, func(subj string, _ []byte) {
		l.Hinted()
		if uid, ok := subject.LifecycleEventPod(subj); ok {
			workers.Wake(types.UID(uid), "pleg")
		}
	})
	return l
}

// beat takes a heartbeat; one of a loop that stands still proves nothing.
func (l *Liveness) beat(turns uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if turns != l.turns {
		l.turns, l.alive = turns, time.Now()
	}
}

// relisted takes a report. One of a relist that failed proves nothing, and neither does one that comes again, as after
// a loss of the bus.
func (l *Liveness) relisted(r *plegv1.Relist) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if r.GetError() == "" && r.GetGeneration() != l.generation {
		l.generation, l.relist = r.GetGeneration(), time.Now()
	}
}

// Hinted notes a hint.
func (l *Liveness) Hinted() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.alive = time.Now()
}

// Last is when pleg last proved that it looks; zero when it never did.
func (l *Liveness) Last() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	if time.Since(l.relist) > staleRelist {
		return l.relist
	}
	return l.alive
}
