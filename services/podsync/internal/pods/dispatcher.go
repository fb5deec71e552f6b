package pods

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	podsyncv1 "github.com/microlet/microlet/proto/microlet/podsync/v1"
	"github.com/microlet/microlet/services/internal/logkey"
	"github.com/microlet/microlet/services/internal/podutil"
)

// tick is how often the loop passes when nothing happens, so that a watchdog can distinguish an idle loop from a hung
// one.
const tick = time.Second

// adoptionJitter spreads the first sync of pods that ran before podsync started: most of them need nothing after a
// restart.
const adoptionJitter = 2 * time.Second

// lateReport is how long a pod's syncs may take until the others are called reported without it.
const lateReport = 30 * time.Second

// Progress is called from the dispatcher's loop, which it must not delay.
type Progress struct {
	// Turn is called with every pass of the loop.
	Turn func()
	// Synced is called once, when all sources are synced and each of their pods was published.
	Synced func()
	// Reported is called once after that, when the state of each pod was reported, which takes a runtime that answers.
	// It does not wait for a pod that cannot be read while others can.
	Reported func()
}

// Dispatcher routes what the sources deliver to one worker per pod.
//
// Its loop never waits: not for a worker, the runtime, the bus or the apiserver.
type Dispatcher struct {
	deps     Deps
	workers  *Workers
	progress Progress
	log      *slog.Logger

	mu     sync.Mutex
	queue  []func(ctx context.Context)
	signal chan struct{}
	// unsynced are the sources that are not synced yet.
	unsynced []podsyncv1.PodSource

	// What follows belongs to the loop.
	held map[types.NamespacedName][]held
	// reported: the state of every pod was reported.
	reported bool

	running sync.WaitGroup
}

// NewDispatcher returns a Dispatcher without workers. Nothing is concluded from a pod's absence before all sources are
// synced.
func NewDispatcher(workers *Workers, deps Deps, sources []podsyncv1.PodSource, progress Progress) *Dispatcher {
	if deps.Resync == 0 {
		deps.Resync = time.Minute
	}
	return &Dispatcher{
		deps: deps, workers: workers, progress: progress, log: deps.Log,
		signal: make(chan struct{}, 1), unsynced: slices.Clone(sources), held: map[types.NamespacedName][]held{},
	}
}

// Run runs the loop until ctx ends. It then waits for the workers, which end with ctx.
func (d *Dispatcher) Run(ctx context.Context) error {
	defer d.running.Wait()
	ticker := time.NewTicker(tick)
	defer ticker.Stop()
	for {
		d.progress.Turn()
		for _, do := range d.take() {
			do(ctx)
		}
		d.checkReported()
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		case <-d.signal:
		}
	}
}

// post leaves work for the loop and never blocks.
func (d *Dispatcher) post(do func(ctx context.Context)) {
	d.mu.Lock()
	d.queue = append(d.queue, do)
	d.mu.Unlock()
	select {
	case d.signal <- struct{}{}:
	default:
	}
}

func (d *Dispatcher) take() []func(context.Context) {
	d.mu.Lock()
	defer d.mu.Unlock()
	q := d.queue
	d.queue = nil
	return q
}

// SetPod implements source.Sink.
func (d *Dispatcher) SetPod(p *v1.Pod, from podsyncv1.PodSource) {
	d.post(func(ctx context.Context) {
		w := d.workers.worker(p.UID)
		if w != nil && w.source != from {
			d.log.Error("two sources have a pod of the same UID, using the first", logkey.Pod, podName(p),
				logkey.PodUID, p.UID,
				"first", w.source.String(), "second", from.String())
			return
		}
		d.announce(p, from)
		if w != nil {
			w.set(p)
		} else if !d.hold(p, from) {
			d.start(ctx, d.newWorker(p, from))
		}
	})
}

// RemovePod implements source.Sink.
func (d *Dispatcher) RemovePod(uid types.UID, from podsyncv1.PodSource) {
	d.post(func(context.Context) {
		if w := d.workers.worker(uid); w != nil && w.source == from {
			w.remove()
		} else if w == nil {
			d.dropHeld(uid)
		}
	})
}

// SourceSynced implements source.Sink.
func (d *Dispatcher) SourceSynced(from podsyncv1.PodSource) {
	d.post(func(context.Context) {
		d.deps.Admission.Heard(from)
		last := d.heard(from)
		d.log.Info("pod source synced", logkey.Source, from.String(), "pods", len(d.workers.UIDs()), "all", last)
		if last {
			d.progress.Synced()
			close(d.workers.synced)
		}
	})
}

// checkReported calls Reported once the state of each pod was reported.
func (d *Dispatcher) checkReported() {
	if d.reported || !d.workers.isSynced() {
		return
	}
	var late []types.UID
	all := d.workers.all()
	for _, w := range all {
		switch reported, isLate := w.hasReported(); {
		case isLate:
			late = append(late, w.uid)
		case !reported:
			return
		}
	}
	if len(late) > 0 {
		if len(late) == len(all) {
			return // the runtime shows no pod at all
		}
		d.log.Warn("pods cannot be read, going on without them", "pods", late)
	}
	d.reported = true
	d.progress.Reported()
}

func (d *Dispatcher) newWorker(p *v1.Pod, from podsyncv1.PodSource) *worker {
	return newWorker(p, from, &d.deps, d.workers.metrics)
}

// start registers the pod with every component that keeps data by UID, and starts its worker. A component must not skip
// a UID that it has seen before: that pod is forgotten.
func (d *Dispatcher) start(ctx context.Context, w *worker) {
	p := w.inbox.latest()
	d.deps.Admission.Add(p, w.source)
	if end := d.deps.Ends(p); end != nil {
		w.evict(eviction{causeEvicted, *end, nil})
	}
	w.onForgotten = func() { d.post(func(ctx context.Context) { d.startHeld(ctx, w) }) }
	d.workers.add(w)
	w.inbox.regrant() // a grant that came before was given to no worker
	w.publish()
	d.running.Go(func() {
		if w.run(ctx) {
			d.post(func(ctx context.Context) { d.finish(ctx, w) })
		}
	})
}

// finish drops the worker of a pod that is gone, or that is to be restarted. If the source wants the pod again, the pod
// gets another worker. That happens after a list of an API server that was behind, and when a manifest was put back.
func (d *Dispatcher) finish(ctx context.Context, w *worker) {
	if p := w.inbox.wantedAgain(); p != nil {
		// The worker may have made Statuses forget it.
		d.announce(p, w.source)
		if w.standing.isForgotten() && d.hold(p, w.source) { // another of its name has begun since
			d.workers.remove(w.uid)
			return
		}
		d.start(ctx, d.newWorker(p, w.source))
		return
	}
	if w.reporter.inPhase() != gone { // it was to be restarted, and is not wanted any more: its remains are removed
		last := d.newWorker(w.inbox.latest(), w.source)
		last.remove()
		d.start(ctx, last)
		return
	}
	d.workers.remove(w.uid)
	d.startHeld(ctx, w)
}

// firstDelay is zero for a pod that waits to be started or to be stopped, and jittered for one that runs or has ended.
func firstDelay(p *v1.Pod) time.Duration {
	if p.DeletionTimestamp == nil && podutil.IsTerminal(p.Status.Phase) {
		return rand.N(adoptionJitter) // its sandboxes are stopped once more
	}
	if p.DeletionTimestamp != nil || p.Status.Phase != v1.PodRunning {
		return 0
	}
	for i := range p.Status.ContainerStatuses {
		if p.Status.ContainerStatuses[i].State.Running == nil {
			return 0
		}
	}
	return rand.N(adoptionJitter)
}
