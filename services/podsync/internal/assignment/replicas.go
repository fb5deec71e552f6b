package assignment

import (
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	busv1 "github.com/microlet/microlet/proto/microlet/bus/v1"
)

const (
	// hungAfter is how long a replica's loop may show no turn: nearly two of its heartbeats, so that
	// one which hangs is found within 10 s.
	hungAfter = 9 * time.Second
	// comeback is what a replica whose connection was lost has to be there again, as after a restart,
	// before its pods move.
	comeback = 700 * time.Millisecond
)

// Heartbeats are the heartbeats of the prober's replicas; see bus.View.
type Heartbeats interface {
	All() map[string]*busv1.Heartbeat
	Synced() bool
	Received(key string) time.Time
}

// replicas knows which replicas live.
type replicas struct {
	beats Heartbeats

	mu   sync.Mutex
	seen map[string]sign
	gone map[string]time.Time // since when the bus has no connection of it
}

// sign is a replica's newest sign of life.
type sign struct {
	pid   int32
	turns uint64
	at    time.Time
}

func newReplicas(b Heartbeats) *replicas {
	return &replicas{beats: b, seen: map[string]sign{}, gone: map[string]time.Time{}}
}

// lost takes the bus's word that a replica's connection is gone.
func (r *replicas) lost(replica string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.gone[replica] = time.Now()
}

// alive returns the living replicas, sorted, and when that may change by itself; known is false while
// nothing can be said because the bus is away.
func (r *replicas) alive() (names []string, again time.Time, known bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	if !r.beats.Synced() {
		// Nobody grows old while nobody can be heard, and who was lost was lost with the bus.
		clear(r.gone)
		for name, s := range r.seen {
			s.at = now
			r.seen[name] = s
		}
		return nil, time.Time{}, false
	}
	beats := r.beats.All()
	for key, b := range beats {
		_, name, _ := strings.Cut(key, ".")
		if s := r.seen[name]; s.at.IsZero() || s.pid != b.GetPid() || s.turns != b.GetTurns() {
			r.seen[name] = sign{b.GetPid(), b.GetTurns(), now}
		}
		if at, lost := r.gone[name]; lost && r.beats.Received(key).After(at) {
			delete(r.gone, name)
		}
	}
	until := func(t time.Time) {
		if again.IsZero() || t.Before(again) {
			again = t
		}
	}
	for name, s := range r.seen {
		end := s.at.Add(hungAfter)
		if at, lost := r.gone[name]; lost {
			end = at.Add(comeback)
		}
		if end.After(now) {
			names = append(names, name)
			until(end)
		}
	}
	slices.Sort(names)
	return names, again, true
}

// forget lets go of replicas that have been silent for long.
func (r *replicas) forget() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.beats.Synced() {
		return
	}
	beats := r.beats.All()
	maps.DeleteFunc(r.seen, func(name string, s sign) bool {
		_, beating := beats["prober."+name]
		return !beating && time.Since(s.at) > hungAfter
	})
}
