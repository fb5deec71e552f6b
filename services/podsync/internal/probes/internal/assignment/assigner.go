package assignment

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"google.golang.org/protobuf/proto"

	podsyncv1 "github.com/microlet/microlet/proto/microlet/podsync/v1"
	"github.com/microlet/microlet/proto/subject"
	"github.com/microlet/microlet/services/internal/logkey"
)

// turn is how often the replicas are looked at when nothing happens.
const turn = time.Second

// turnRate is how often they are looked at when something happens, in a second. The prober may send heartbeats as often
// as it likes.
const turnRate = 20

// Writer is podsync's share of ASSIGNMENT; see bus.Writer.
type Writer interface {
	Put(key string, m proto.Message)
	Delete(key string)
	Complete()
}

// Known is what ASSIGNMENT held when podsync came; see bus.View.
type Known interface {
	Get(key string) (*podsyncv1.Assignment, bool)
	Synced() bool
}

// Options of an Assigner.
type Options struct {
	Writer     Writer
	Known      Known
	Heartbeats Heartbeats
	// Changed is called with each pod when its assignment was made, found again or changed; it must not block.
	Changed func(uid types.UID)
	Log     *slog.Logger
	Metrics prometheus.Registerer
}

// Assigner keeps the assignments. Make it with New; Run runs it.
type Assigner struct {
	o        Options
	replicas *replicas
	moves    prometheus.Counter
	woken    chan struct{}

	mu       sync.Mutex
	weights  map[string]float64
	current  map[string]*podsyncv1.Assignment
	last     uint64 // the newest generation
	complete bool
	begun    bool // the bus has been read once
	marked   bool
}

// New returns an assigner without pods.
func New(o Options) *Assigner {
	a := &Assigner{
		o: o, replicas: newReplicas(o.Heartbeats), woken: make(chan struct{}, 1),
		weights: map[string]float64{}, current: map[string]*podsyncv1.Assignment{},
		moves: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "microlet_podsync_probe_assignments_total", Help: "Assignments of a pod to a replica of the prober.",
		}),
	}
	o.Metrics.MustRegister(a.moves)
	return a
}

// Set adds or updates a pod. A pod without probes gets no assignment.
func (a *Assigner) Set(p *v1.Pod) {
	w := Weight(p)
	if w == 0 {
		return
	}
	a.mu.Lock()
	a.weights[string(p.UID)] = w
	a.mu.Unlock()
	a.wake()
}

// Forget reports that a pod is gone.
func (a *Assigner) Forget(uid types.UID) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if _, had := a.weights[string(uid)]; had {
		delete(a.weights, string(uid))
		delete(a.current, string(uid))
		a.o.Writer.Delete(subject.PodKey(string(uid)))
	}
}

// Complete reports that every pod of the sources was set.
func (a *Assigner) Complete() {
	a.mu.Lock()
	a.complete = true
	a.mu.Unlock()
	a.wake()
}

// Lost is the bus's hint that a replica's connection is gone.
func (a *Assigner) Lost(replica string) {
	a.replicas.lost(replica)
	a.wake()
}

// Beat is called when a heartbeat came.
func (a *Assigner) Beat() { a.wake() }

// Of returns a pod's assignment.
func (a *Assigner) Of(uid string) (*podsyncv1.Assignment, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	assignment, ok := a.current[uid]
	return assignment, ok
}

func (a *Assigner) wake() {
	select {
	case a.woken <- struct{}{}:
	default:
	}
}

// Run assigns until ctx ends.
func (a *Assigner) Run(ctx context.Context) error {
	timer := time.NewTimer(turn)
	defer timer.Stop()
	pace := rate.NewLimiter(turnRate, turnRate)
	for {
		again := a.assign()
		wait := turn
		if !again.IsZero() {
			wait = min(wait, max(time.Until(again), 10*time.Millisecond))
		}
		timer.Reset(wait)
		select {
		case <-ctx.Done():
			return nil
		case <-a.woken:
			if pace.Wait(ctx) != nil {
				return nil
			}
		case <-timer.C:
		}
	}
}

// assign brings the assignments up to date, and says when that is due again.
func (a *Assigner) assign() (again time.Time) {
	alive, takers, again, known := a.replicas.alive()
	a.replicas.forget()
	var changed []string
	a.mu.Lock()
	defer func() {
		a.mu.Unlock()
		for _, uid := range changed {
			a.o.Changed(types.UID(uid))
		}
	}()
	// What an earlier podsync assigned is found again before anything new is assigned.
	if !a.begun && !a.o.Known.Synced() {
		return again
	}
	a.begun = true
	for uid := range a.weights {
		if a.current[uid] != nil {
			continue
		}
		if found, ok := a.o.Known.Get(uid); ok && found.GetReplica() != "" {
			a.current[uid] = found
			a.last = max(a.last, found.GetGeneration())
			a.o.Writer.Put(subject.PodKey(uid), found)
			changed = append(changed, uid)
		}
	}
	if known {
		changed = append(changed, a.balance(alive, takers)...)
	}
	if a.complete && !a.marked {
		a.marked = true
		a.o.Writer.Complete()
	}
	return again
}

func (a *Assigner) balance(alive, takers []string) (changed []string) {
	current := make(map[string]string, len(a.current))
	for uid, assignment := range a.current {
		current[uid] = assignment.GetReplica()
	}
	for uid, replica := range Balance(a.weights, current, alive, takers) {
		if replica == current[uid] {
			continue
		}
		// The clock makes it grow over restarts, also when the bus has forgotten all.
		a.last = max(a.last+1, uint64(time.Now().UnixNano()))
		a.current[uid] = &podsyncv1.Assignment{Replica: replica, Generation: a.last}
		a.o.Writer.Put(subject.PodKey(uid), a.current[uid])
		a.moves.Inc()
		changed = append(changed, uid)
		a.o.Log.Debug("pod assigned", logkey.PodUID, uid, logkey.Replica, replica, "before", current[uid])
	}
	return changed
}
