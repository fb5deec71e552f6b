package manager

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"

	"google.golang.org/protobuf/proto"

	podsyncv1 "github.com/microlet/microlet/proto/microlet/podsync/v1"
	proberv1 "github.com/microlet/microlet/proto/microlet/prober/v1"
	"github.com/microlet/microlet/proto/subject"
	"github.com/microlet/microlet/services/internal/bus"
	"github.com/microlet/microlet/services/internal/nodepods"
	"github.com/microlet/microlet/services/internal/outbox"
	"github.com/microlet/microlet/services/internal/signal"
	"github.com/microlet/microlet/services/internal/tracing"
	"github.com/microlet/microlet/services/prober/internal/worker"
)

const (
	// turn is the period of the loop when nothing happens.
	turn = time.Second
	// sweepPeriod is how often results of pods that are gone are looked for.
	sweepPeriod = time.Minute
)

// View is what the manager needs of a bucket; see bus.View.
type View[M proto.Message] interface {
	Get(key string) (M, bool)
	All() map[string]M
	Synced() bool
}

// Pods has the node's pods; see nodepods.View.
type Pods interface {
	Get(uid string) (*nodepods.Pod, bool)
	Synced() bool
	// Traceparent is of the span in which a pod's status was put; empty if there is none.
	Traceparent(uid string) string
}

// Results is this replica's share of PROBE_RESULTS; see bus.Writer.
type Results interface {
	Refresh(key string, m proto.Message)
	Delete(key string)
	Release(key string)
	Complete()
}

// Options of a Manager.
type Options struct {
	Replica string
	Prober  worker.Prober
	Events  outbox.Events
	Metrics *Metrics
	// Tracer continues the traces of pods; nil does not.
	Tracer *tracing.Tracer
	// Turned is called in each round of the loop.
	Turned func()
	// Ready is called once, when every bucket was read and its probes are under way.
	Ready func()
	Log   *slog.Logger
}

// Buckets are what the manager reads and writes.
type Buckets struct {
	Pods        Pods
	Assignments View[*podsyncv1.Assignment]
	Known       View[*proberv1.ProbeResult]
	Results     Results
	// Bus names the bus's process that there is a connection to; see bus.Client.ServerID.
	Bus func() string
}

// Manager keeps the workers. Make it with New or Watch; Run runs it.
type Manager struct {
	o Options
	b Buckets

	mu    sync.Mutex
	dirty map[string]struct{}
	wake  signal.Signal

	// What follows belongs to Run's goroutine.
	pods    map[string]*pod
	began   time.Time
	started bool
	running sync.WaitGroup
}

// New returns a manager over the buckets; Changed is to be called for each pod that changes in them.
func New(o Options, b Buckets) *Manager {
	return &Manager{o: o, b: b, dirty: map[string]struct{}{}, wake: signal.New(), pods: map[string]*pod{}}
}

// Watch returns a manager over a bus's buckets.
func Watch(o Options, c *bus.Client) *Manager {
	m := New(o, Buckets{})
	var known *bus.View[*proberv1.ProbeResult]
	known = bus.Watch[proberv1.ProbeResult](c, subject.ProbeResults, ">", func(key string) {
		// Its own results contain nothing new for a replica.
		if r, ok := known.Get(key); ok && r.GetReplica() != o.Replica {
			if uid, _, _, ok := subject.ParseProbeResultKey(key); ok {
				m.Changed(uid)
			}
		}
	})
	m.b = Buckets{
		Pods:        nodepods.Watch(c, o.Log, m.Changed),
		Assignments: bus.Watch[podsyncv1.Assignment](c, subject.Assignment, ">", m.Changed),
		Known:       known,
		Results:     c.Own(subject.ProbeResults),
		Bus:         c.ServerID,
	}
	return m
}

// Changed has the manager look at a pod again. It never blocks.
func (m *Manager) Changed(uid string) {
	m.mu.Lock()
	m.dirty[uid] = struct{}{}
	m.mu.Unlock()
	m.wake.Set()
}

func (m *Manager) take() map[string]struct{} {
	m.mu.Lock()
	defer m.mu.Unlock()
	dirty := m.dirty
	m.dirty = map[string]struct{}{}
	return dirty
}

// Run keeps the workers until ctx ends, and returns when all have ended.
func (m *Manager) Run(ctx context.Context) error {
	defer m.running.Wait()
	m.began = time.Now()
	ticker := time.NewTicker(turn)
	defer ticker.Stop()
	swept := m.began
	for {
		m.o.Turned()
		if m.started || m.synced() {
			for uid := range m.take() {
				m.reconcile(ctx, uid)
			}
			if !m.started {
				m.started = true
				// What the workers took over was put again just now.
				m.b.Results.Complete()
				m.o.Ready()
			}
			if time.Since(swept) >= sweepPeriod {
				swept = time.Now()
				m.sweep()
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		case <-m.wake:
		}
	}
}

// synced reports whether every bucket has been read.
func (m *Manager) synced() bool {
	if !m.b.Pods.Synced() || !m.b.Assignments.Synced() || !m.b.Known.Synced() {
		return false
	}
	for uid := range m.b.Assignments.All() {
		m.Changed(uid)
	}
	return true
}

// sweep deletes this replica's results of pods that ended while it was away.
func (m *Manager) sweep() {
	if !m.b.Pods.Synced() || !m.b.Known.Synced() {
		return
	}
	for key, r := range m.b.Known.All() {
		uid, _, _, ok := subject.ParseProbeResultKey(key)
		if _, known := m.b.Pods.Get(uid); ok && !known && r.GetReplica() == m.o.Replica {
			m.b.Results.Delete(key)
		}
	}
}

// reconcile makes a pod's workers what they should be.
func (m *Manager) reconcile(ctx context.Context, uid string) {
	assignment, assigned := m.b.Assignments.Get(uid)
	seen, exists := m.b.Pods.Get(uid)
	p := m.pods[uid]
	switch {
	case !exists || !assigned && p == nil:
		if p != nil {
			p.stop(m.b.Results.Delete)
			delete(m.pods, uid)
		}
		return
	case !assigned || assignment.GetReplica() != m.o.Replica:
		if p != nil && assigned {
			// The next one goes on from there. Its results are not this replica's any more.
			p.stop(m.b.Results.Release)
			delete(m.pods, uid)
		}
		return
	}
	if seen.Err != nil {
		return // it is probed as it was
	}
	if p == nil {
		p = newPod(m, uid)
		m.pods[uid] = p
	}
	p.update(ctx, assignment.GetGeneration(), seen)
}

// spread reports whether workers that begin now are many: the process has just started.
func (m *Manager) spread(probe *v1.Probe) bool {
	return time.Since(m.began) < time.Duration(probe.PeriodSeconds)*time.Second
}

// key is where a probe's result is.
func key(uid, container string, kind worker.Kind) string {
	return subject.ProbeResultKey(uid, container, string(kind))
}

func podName(p *v1.Pod) string { return fmt.Sprintf("%s/%s", p.Namespace, p.Name) }
