package assignment

import (
	"maps"
	"slices"
	"sync"
	"time"

	busv1 "github.com/microlet/microlet/proto/microlet/bus/v1"
	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/proto/subject"
	"github.com/microlet/microlet/services/internal/service"
)

const (
	// hungAfter is how long a replica's loop may show no round: nearly two of its heartbeats, so that one which hangs is
	// found within 10 s.
	hungAfter = 9 * time.Second
	// comeback is how long a replica with a lost connection has to come back, as after a restart, before its pods move.
	comeback = 700 * time.Millisecond
	// settled is how old a process must have become for its end to be a restart's. One that ends
	// younger ends for a reason that its successor will meet too: its pods move at once.
	settled = time.Second
	// probation is what the successor of such a one has to live before it gets pods from others.
	probation = 5 * time.Second
)

// Heartbeats are the heartbeats of the prober's replicas; see bus.View.
type Heartbeats interface {
	All() map[string]*busv1.Heartbeat
	Synced() bool
	Received(key string) time.Time
}

// replicas knows which replicas live, of those that service.IsReplica names. A prober can put heartbeats of any
// number of others, and the bus takes them.
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
	// since is when the first sign of this process came.
	since time.Time
	// frail says that the process before had ended as soon as it had begun.
	frail bool
}

func newReplicas(b Heartbeats) *replicas {
	return &replicas{beats: b, seen: map[string]sign{}, gone: map[string]time.Time{}}
}

// lost takes the bus's word that a replica's connection is gone.
func (r *replicas) lost(replica string) {
	if !service.IsReplica(replica) {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, before := r.gone[replica]; !before { // else it came and went without a sign of life
		r.gone[replica] = time.Now()
	}
}

// alive returns the living replicas, sorted, those of them which may be given pods, and when that may
// change by itself; known is false while nothing can be said because the bus is away.
func (r *replicas) alive() (names, takers []string, again time.Time, known bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	if !r.beats.Synced() {
		// While the bus is away, no replica gets older, and a lost replica was lost with the bus.
		clear(r.gone)
		for name, s := range r.seen {
			s.at = now
			r.seen[name] = s
		}
		return nil, nil, time.Time{}, false
	}
	r.observe(now)
	until := func(t time.Time) {
		if again.IsZero() || t.Before(again) {
			again = t
		}
	}
	for name, s := range r.seen {
		end := s.at.Add(hungAfter)
		if at, lost := r.gone[name]; lost {
			if end = at; at.Sub(s.since) >= settled {
				end = at.Add(comeback)
			}
		}
		if !end.After(now) {
			continue
		}
		names = append(names, name)
		until(end)
		if proven := s.since.Add(probation); s.frail && proven.After(now) {
			until(proven)
		} else {
			takers = append(takers, name)
		}
	}
	slices.Sort(names)
	slices.Sort(takers)
	return names, takers, again, true
}

// observe takes in the replicas' heartbeats.
func (r *replicas) observe(now time.Time) {
	for key, b := range r.beats.All() {
		_, name, ok := subject.ParseHeartbeatKey(key)
		if !ok || !service.IsReplica(name) {
			continue
		}
		received := r.beats.Received(key)
		at, lost := r.gone[name]
		s, known := r.seen[name]
		switch {
		case !known || s.pid != b.GetPid():
			r.seen[name] = sign{
				pid:   b.GetPid(),
				turns: b.GetTurns(),
				at:    now,
				since: received,
				frail: known && lost && at.Sub(s.since) < settled,
			}
		case s.turns != b.GetTurns():
			s.turns, s.at = b.GetTurns(), now
			r.seen[name] = s
		}
		if lost && received.After(at) {
			delete(r.gone, name)
		}
	}
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
		_, beating := beats[subject.HeartbeatKey(role.Prober, name)]
		return !beating && time.Since(s.at) > hungAfter
	})
}
