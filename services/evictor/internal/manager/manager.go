// Package manager decides when pods must go, one at a time.
//
// Its loop reads the signals, reports the pressure and never waits for others. What takes time, an eviction or the
// removal of images, runs beside the loop, one at a time.
package manager

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"github.com/microlet/microlet/services/evictor/internal/fuse"
	"github.com/microlet/microlet/services/evictor/internal/localstorage"
	"github.com/microlet/microlet/services/evictor/internal/reading"
	"github.com/microlet/microlet/services/evictor/internal/signal"
	"github.com/microlet/microlet/services/evictor/internal/threshold"
	"github.com/microlet/microlet/services/evictor/internal/tracker"
	"github.com/microlet/microlet/services/evictor/internal/usage"
	"github.com/microlet/microlet/services/internal/logkey"
	"github.com/microlet/microlet/services/internal/nodepods"
)

// Reader reads signals; see reading.Reader.
type Reader interface {
	Quick() reading.Result
	Disks(ctx context.Context) reading.Result
	All(ctx context.Context) reading.Result
}

// Pods are the node's; see pods.Pods.
type Pods interface {
	// Known reports whether all pods of the node have been seen.
	Known() bool
	Active() []*nodepods.Pod
	Evicting() string
	Await(ctx context.Context, uid string) bool
}

// Usage says what pods use; see usage.Usage.
type Usage interface {
	Of(ctx context.Context, all []*nodepods.Pod, disk bool) (usage.Figures, error)
}

// Eviction is what podsync is asked for.
type Eviction struct {
	Pod          *v1.Pod
	Message      string
	GraceSeconds int64
	Annotations  map[string]string
	// Disruption gives the pod the condition DisruptionTarget: it goes for the node, not for what it does.
	Disruption bool
	// Exceeded is the limit of local storage that the pod exceeds; nil if the node is short of a resource.
	Exceeded *localstorage.Excess
}

// ErrRefused says that a pod may not be evicted, or is gone.
var ErrRefused = errors.New("the pod is not evicted")

// ErrUnfinished says that space was not freed to the end, and may be when it is tried again.
var ErrUnfinished = errors.New("not all that can be freed is free yet")

// Node is what else is done on the node.
type Node interface {
	// Evict ends a pod and returns when its containers have stopped, or after a time in which they have not. An error that
	// is ErrRefused means that podsync did nothing; with any other the pod may be ending.
	Evict(ctx context.Context, e Eviction) (stopped bool, err error)
	// RemoveDeadContainers and DeleteUnusedImages free space.
	RemoveDeadContainers(ctx context.Context) error
	DeleteUnusedImages(ctx context.Context) error
	// ThresholdMet records the Event about what is reclaimed.
	ThresholdMet(resource v1.ResourceName)
}

// Options of a Manager.
type Options struct {
	Thresholds []threshold.Threshold
	// Transition is evictionPressureTransitionPeriod.
	Transition time.Duration
	// MaxPodGrace is evictionMaxPodGracePeriod, in seconds. It may be negative.
	MaxPodGrace int64
	// Period is how often all signals are read.
	Period time.Duration
	// LocalStorage is looked at once in a Period.
	LocalStorage LocalStorage

	Reader Reader
	Pods   Pods
	Usage  Usage
	// Measure measures the one pod that is to be evicted for a limit.
	Measure Measure
	Node    Node
	// Report gets the pressure in each round of the loop.
	Report func(Pressure)
	// Turned is called in each round of the loop.
	Turned  func()
	Metrics *Metrics
	Log     *slog.Logger
}

// Manager runs once.
type Manager struct {
	o       Options
	tracker *tracker.Tracker
	fuse    fuse.Fuse
	// postponed counts the rounds in a row that ended since space was still being freed. Only the work uses it.
	postponed int
	// requests are for pods that have not ended according to the bus. Only the work uses them.
	requests requests

	seen        threshold.Observations
	failed      map[signal.Signal]error
	layout      threshold.Layout
	layoutKnown bool
	complained  map[signal.Signal]bool
	impossible  map[signal.Signal]bool
	last        LastEviction
	// disks are read beside the loop, which reports nothing before they have been read once.
	disks disks
	// asked has the eviction that is asked for next, so that it is reported before it is done.
	asked chan LastEviction
}

// LastEviction is the eviction that was asked for last.
type LastEviction struct {
	PodUID string
	Time   time.Time
}

// Adopted is what an evictor before this one reported.
type Adopted struct {
	LastMet map[v1.NodeConditionType]time.Time
	Last    LastEviction
}

// New returns a Manager that continues what was reported before.
func New(o Options, before Adopted) *Manager {
	m := &Manager{
		o: o, tracker: tracker.New(o.Transition), seen: threshold.Observations{},
		failed: map[signal.Signal]error{}, complained: map[signal.Signal]bool{}, last: before.Last,
		asked: make(chan LastEviction, 1), impossible: map[signal.Signal]bool{}, requests: requests{},
		disks: disks{results: make(chan reading.Result, 1)},
	}
	now := time.Now()
	for c, at := range before.LastMet {
		m.tracker.Adopt(c, at, now)
	}
	return m
}

// Run runs until ctx ends.
func (m *Manager) Run(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	defer m.disks.wait()
	// results has what a round of work did; one at a time is under way.
	results := make(chan outcome, 1)
	var current *round
	giveWay := func() {}
	working := m.resume(ctx, results)
	defer func() {
		if working {
			<-results
		}
	}()
	var nextWork, nextStorage time.Time
	for {
		select {
		case <-ctx.Done():
			return nil
		case out := <-results:
			working, current = false, nil
			switch {
			case out.evicted:
				m.disks.outdate(time.Now()) // what did it bring?
				nextStorage = time.Time{}
			case out.interrupted: // the urgent round is next
			case out.pressure:
				nextWork = time.Now().Add(m.o.Period)
				m.tracker.Acted(m.seen) // the round has read everything again
			}
		case r := <-m.disks.results:
			m.disks.done()
			m.take(r)
		case m.last = <-m.asked:
		case <-timer.C:
		}
		m.o.Turned()
		now := time.Now()
		m.disks.read(ctx, now, m.o.Period, m.o.Reader.Disks)
		m.take(m.o.Reader.Quick())
		all := m.possible(threshold.ForLayout(m.o.Thresholds, m.layout))
		due := m.tracker.Update(all, m.seen, now)
		if m.disks.readOnce {
			m.report(now)
		}
		switch {
		case !working:
			if current = m.next(now, due, all, nextWork, nextStorage); current != nil {
				working = true
				if current.storage {
					nextStorage = now.Add(m.o.Period)
				}
				giveWay = m.start(ctx, current, results)
			}
		case current != nil && urgent(due) && !urgent(current.due):
			giveWay()
		}
		timer.Reset(m.pause(all))
	}
}

// start runs a round beside the loop. It returns what has the round give way to a more urgent one.
func (m *Manager) start(ctx context.Context, r *round, results chan<- outcome) (giveWay context.CancelFunc) {
	if len(r.due) > 0 {
		m.tracker.Acted(m.seen)
	}
	r.look, giveWay = context.WithCancel(ctx)
	go func() {
		out := r.do(ctx)
		giveWay()
		results <- out
	}()
	return giveWay
}

// possible returns the thresholds without those that no node of this capacity can be above. They are a mistake, for
// which all pods would be evicted.
func (m *Manager) possible(all []threshold.Threshold) []threshold.Threshold {
	return slices.DeleteFunc(slices.Clone(all), func(t threshold.Threshold) bool {
		o, ok := m.seen[t.Signal]
		if !ok || !t.Impossible(o.Capacity) {
			return false
		}
		if !m.impossible[t.Signal] {
			m.impossible[t.Signal] = true
			m.o.Log.Error("an eviction threshold exceeds what the node has; nothing is evicted for it",
				"signal", t.Signal, "threshold", t.Value.Quantity, "capacity", o.Capacity)
		}
		return true
	})
}

// next returns the round of work that is due, nil if none is. Of a shortage of memory or processes nothing waits for
// what pods take of the disk.
func (m *Manager) next(now time.Time, due, all []threshold.Threshold, nextWork, nextStorage time.Time) *round {
	if !m.o.Pods.Known() {
		return nil // a part of the pods must not pass for all of them
	}
	if now.Before(nextWork) {
		due = nil
	}
	// What lies on which disk must be known, and no eviction may be newer than what is known.
	if !m.layoutKnown || m.disks.outdated {
		due = slices.DeleteFunc(slices.Clone(due), func(t threshold.Threshold) bool {
			return t.Signal.Condition() == v1.NodeDiskPressure
		})
	}
	storage := m.o.LocalStorage.Enforced && !now.Before(nextStorage) &&
		(len(due) == 0 || due[0].Signal.Condition() == v1.NodeDiskPressure)
	if len(due) == 0 && !storage {
		return nil
	}
	return m.work(due, all, storage)
}

// resume waits for an eviction that an evictor before this one has asked for.
func (m *Manager) resume(ctx context.Context, results chan<- outcome) bool {
	const recent = time.Minute
	uid := m.o.Pods.Evicting()
	if age := time.Since(m.last.Time); uid == "" && m.last.PodUID != "" && age >= 0 && age < recent {
		uid = m.last.PodUID
	}
	if uid == "" {
		return false
	}
	m.o.Log.Info("an eviction from before the start is awaited", logkey.PodUID, uid)
	go func() {
		m.o.Pods.Await(ctx, uid)
		results <- outcome{evicted: true}
	}()
	return true
}

// take merges what was read. What was not read keeps its last observation, and what failed has none.
func (m *Manager) take(r reading.Result) {
	maps.Copy(m.seen, r.Seen)
	for s, err := range r.Failed {
		delete(m.seen, s)
		m.failed[s] = err
		if !reading.Harmless(err) {
			m.o.Metrics.skipped.WithLabelValues(string(s)).Inc()
			if !m.complained[s] {
				m.complained[s] = true
				m.o.Log.Warn("an eviction signal cannot be read; nothing is evicted for it", "signal", s, logkey.Err, err)
			}
		}
	}
	for s := range r.Seen {
		delete(m.failed, s)
		if m.complained[s] {
			delete(m.complained, s)
			m.o.Log.Info("an eviction signal can be read again", "signal", s)
		}
	}
	if r.LayoutKnown {
		m.layout, m.layoutKnown = r.Layout, true
	}
}

// Pauses between two readings of memory. The longest is what the watchdog allows.
const (
	longest  = 2 * time.Second
	shortest = 100 * time.Millisecond
	// growth is how fast memory may run out, in bytes a second. A faster program is the OOM killer's.
	growth = 1 << 30
)

// pause is how long the loop may sleep, so that memory cannot run out meanwhile.
func (m *Manager) pause(all []threshold.Threshold) time.Duration {
	d := longest
	for _, t := range all {
		o, ok := m.seen[t.Signal]
		if !ok || t.Signal.Resource() != v1.ResourceMemory {
			continue
		}
		value := t.Value.Of(o.Capacity)
		switch left := o.Available - value.Value(); {
		case left < 0:
			d = min(d, time.Second) // it is met: what follows takes its time
		case left < growth*int64(longest/time.Second):
			d = min(d, max(time.Duration(float64(left)/growth*float64(time.Second)), shortest))
		}
	}
	return d
}

// figuresOf makes the figures a function, as ranking wants them.
func figuresOf(all usage.Figures) func(p *v1.Pod) *statsapi.PodStats {
	return func(p *v1.Pod) *statsapi.PodStats { return all[p.UID] }
}
