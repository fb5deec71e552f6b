package worker

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	podsyncv1 "github.com/microlet/microlet/proto/microlet/podsync/v1"
)

// tick is how often the loop turns when nothing happens, so that a watchdog can tell
// an idle loop from a hung one.
const tick = time.Second

// adoptionJitter spreads the first look at pods that ran before podsync started: after a
// restart nothing is to be done for most of them (design rule 12).
const adoptionJitter = 2 * time.Second

// Dispatcher routes what is heard about pods to their workers, one a pod.
//
// Its loop never waits: not for a worker, the runtime, the bus or the apiserver.
type Dispatcher struct {
	deps Deps
	// turn is called with each turn of the loop.
	turn func()
	log  *slog.Logger

	mu      sync.Mutex
	queue   []func(ctx context.Context)
	signal  chan struct{}
	workers map[types.UID]*worker
	synced  bool
	// onSynced is called once, from the loop, when every source has been heard, and onReported
	// when after that the state of every pod was reported.
	onSynced, onReported func()
	reported             bool // belongs to the loop
	// expected are the sources that were not heard yet.
	expected []podsyncv1.PodSource
	// held belongs to the loop.
	held map[types.NamespacedName][]held

	running sync.WaitGroup
}

// NewDispatcher returns a dispatcher without pods. onSynced is called once, when all
// sources have told of all that they had and each of those pods was published; onReported once
// after that, when the state of each was published too, which takes a runtime that answers;
// turn with every turn of the loop.
func NewDispatcher(deps Deps, turn, onSynced, onReported func()) *Dispatcher {
	if deps.Resync == 0 {
		deps.Resync = time.Minute
	}
	return &Dispatcher{
		deps: deps, turn: turn, log: deps.Log, onSynced: onSynced, onReported: onReported,
		signal: make(chan struct{}, 1), workers: map[types.UID]*worker{},
		expected: []podsyncv1.PodSource{podsyncv1.PodSource_POD_SOURCE_API}, held: map[types.NamespacedName][]held{},
	}
}

// Run turns until ctx ends, and then waits for the workers, whose calls end with ctx.
func (d *Dispatcher) Run(ctx context.Context) error {
	defer d.running.Wait()
	ticker := time.NewTicker(tick)
	defer ticker.Stop()
	for {
		d.turn()
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
		if w := d.worker(p.UID); w != nil {
			if w.source != from {
				d.log.Error("two sources want a pod of the same UID, the first is heeded", "pod", podName(p), "uid", p.UID,
					"first", w.source.String(), "second", from.String())
				return
			}
			w.set(p)
			return
		}
		if !d.hold(p, from) {
			d.start(ctx, newWorker(p, from, &d.deps))
		}
	})
}

// RemovePod implements source.Sink.
func (d *Dispatcher) RemovePod(uid types.UID, from podsyncv1.PodSource) {
	d.post(func(context.Context) {
		if w := d.worker(uid); w != nil && w.source == from {
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
		d.log.Info("pod source synced", "source", from.String(), "pods", len(d.UIDs()), "all", last)
		if last {
			d.onSynced()
		}
	})
}

// Wake makes a pod's worker look again. An unknown pod is nobody's: cleanup finds what runs of it.
func (d *Dispatcher) Wake(uid types.UID, reason string) {
	d.deps.Metrics.Wakes.WithLabelValues(reason).Inc()
	w := d.worker(uid)
	if w != nil {
		w.wake()
	}
	if d.deps.Stray != nil && d.Synced() && (w == nil || w.hasEnded()) {
		d.deps.Stray() // a creation that its pod's deletion overtook may have come to its end late
	}
}

// Refresh makes a pod's worker look again and bring the pod's volumes up to date.
func (d *Dispatcher) Refresh(uid types.UID, reason string) {
	if w := d.worker(uid); w != nil {
		w.markStale()
	}
	d.Wake(uid, reason)
}

// WakeAll makes every worker look again, spread over the jitter.
func (d *Dispatcher) WakeAll(reason string) {
	for _, uid := range d.UIDs() {
		time.AfterFunc(rand.N(adoptionJitter), func() { d.Wake(uid, reason) })
	}
}

// Synced says whether every source has been heard.
func (d *Dispatcher) Synced() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.synced
}

// Known says whether a pod has a worker.
func (d *Dispatcher) Known(uid types.UID) bool { return d.worker(uid) != nil }

// Ended says whether a pod has a worker that has stopped everything of it for good.
func (d *Dispatcher) Ended(uid types.UID) bool {
	w := d.worker(uid)
	return w != nil && w.hasEnded()
}

// UIDs returns the pods that have workers.
func (d *Dispatcher) UIDs() []types.UID {
	d.mu.Lock()
	defer d.mu.Unlock()
	uids := make([]types.UID, 0, len(d.workers))
	for uid := range d.workers {
		uids = append(uids, uid)
	}
	return uids
}

// Pods returns the pods that have workers and are not finished.
func (d *Dispatcher) Pods() []*v1.Pod {
	d.mu.Lock()
	workers := make([]*worker, 0, len(d.workers))
	for _, w := range d.workers {
		workers = append(workers, w)
	}
	d.mu.Unlock()
	pods := make([]*v1.Pod, 0, len(workers))
	for _, w := range workers {
		if p, ended := w.current(); !ended {
			pods = append(pods, p)
		}
	}
	return pods
}

// Seen returns the digest of each pod's last read state; pods that were not read yet are left out.
func (d *Dispatcher) Seen() map[types.UID]string {
	d.mu.Lock()
	defer d.mu.Unlock()
	seen := make(map[types.UID]string, len(d.workers))
	for uid, w := range d.workers {
		if digest, read := w.seen(); read {
			seen[uid] = digest
		}
	}
	return seen
}

// checkReported calls onReported once its time has come.
func (d *Dispatcher) checkReported() {
	if d.reported {
		return
	}
	d.mu.Lock()
	d.reported = d.synced
	for _, w := range d.workers {
		d.reported = d.reported && w.hasReported()
	}
	d.mu.Unlock()
	if d.reported {
		d.onReported()
	}
}

func (d *Dispatcher) worker(uid types.UID) *worker {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.workers[uid]
}

// start tells all who keep something of a pod by its UID of the pod, and lets its worker run. Nobody may rest on having
// heard of the UID before: a pod that comes again was forgotten when it went.
func (d *Dispatcher) start(ctx context.Context, w *worker) {
	d.deps.Admission.Add(w.pod, w.source)
	if isStatic(w.source) {
		d.deps.Mirrors.Want(w.pod)
	}
	d.mu.Lock()
	d.workers[w.uid] = w
	d.mu.Unlock()
	w.publish()
	d.running.Go(func() {
		if w.run(ctx) {
			d.post(func(ctx context.Context) { d.finish(ctx, w) })
		}
	})
}

// finish lets a worker go whose pod is gone, or is to be restarted. If the source wants the pod again, as after a list of
// an apiserver that was behind or when a manifest was put back, it gets another worker.
func (d *Dispatcher) finish(ctx context.Context, w *worker) {
	if p := w.wantedAgain(); p != nil {
		d.start(ctx, newWorker(p, w.source, &d.deps))
		return
	}
	if w.phase != gone { // it was to be restarted, and is wanted no longer: what was left for that is removed
		last := newWorker(w.latest(), w.source, &d.deps)
		last.remove()
		d.start(ctx, last)
		return
	}
	d.mu.Lock()
	delete(d.workers, w.uid)
	d.mu.Unlock()
	d.startHeld(ctx, w)
}

// firstDelay is zero for a pod that waits to be started or to be stopped, and jittered for one
// that runs or has ended.
func firstDelay(p *v1.Pod) time.Duration {
	if p.DeletionTimestamp == nil && hasEnded(p) {
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
