package pods

import (
	"context"
	"errors"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	podsyncv1 "github.com/microlet/microlet/proto/microlet/podsync/v1"
	"github.com/microlet/microlet/services/internal/logkey"
	"github.com/microlet/microlet/services/internal/podutil"
	"github.com/microlet/microlet/services/internal/shares"
	"github.com/microlet/microlet/services/podsync/internal/admission"
	"github.com/microlet/microlet/services/podsync/internal/pod"
	"github.com/microlet/microlet/services/podsync/internal/pod/decide"
)

// errSyncCanceled ends a sync whose pod has changed in a way that makes its work wrong.
var errSyncCanceled = errors.New("sync canceled by a newer version of the pod")

// worker looks after one pod. It is woken for a reason that it does not know, and looks
// at everything again.
type worker struct {
	uid     types.UID
	source  podsyncv1.PodSource
	deps    *Deps
	metrics *Metrics
	woken   chan struct{}
	// notices say when something has to be reported while a sync lasts.
	notices *notices

	mu         sync.Mutex
	pod        *v1.Pod
	wanted     *v1.Pod // pod as its source has it: with the resources that it is to have
	removed    bool
	again      *v1.Pod   // a version that came after removed: the source names the pod again
	ending     bool      // it is being stopped for good
	ended      bool      // nothing of the pod will run again
	reported   bool      // its state was reported at least once
	tried      time.Time // when the first sync began
	cancelSync context.CancelCauseFunc
	synced     *v1.Pod // the version of the last sync, or of the one that runs
	digest     string
	read       bool
	eviction   *eviction
	stopped    chan struct{} // closed when ended is set
	forgotten  bool          // only remains are left of it, which nothing waits for
	standing   Standing
	// remains are dead containers that count no more, by ID.
	remains map[string]remains

	// stale signals that the sources of the pod's volumes have changed. mounting is the lock of the volumes.
	stale, mounting chan struct{}

	// reporting is held while a status is made and passed on. Run's goroutine alone writes the phase, the rejection and
	// the history's reasons to wait, and holds it for that.
	reporting sync.Mutex
	// shown is the state that was reported last.
	shown *pod.State
	// restarting are the containers, by ID, that the sync stops to start them again.
	restarting map[string]bool

	// pace bounds how often others wake the worker, and waking says that a wake is put off.
	pace   *rate.Limiter
	waking atomic.Bool

	// What follows belongs to run's goroutine, which alone writes it.
	phase   phase
	history history
	backoff *decide.Backoff
	// wholeRestarts have a back-off of their own.
	wholeRestarts wholeRestarts
	// admitted: the pod may run here; rejection is why it may not.
	admitted  bool
	rejection *admission.Result
	// last is the state in which everything had stopped for good; nil before.
	last *pod.State
	// failures counts the syncs that failed one after another.
	failures int
	// pending is what the last sync could not do and the pod's own status tells; nil for nothing.
	pending error
	// predecessorEnded: what ran of the pod under an earlier manifest has ended.
	predecessorEnded bool
	// onForgotten is called when forgotten is set.
	onForgotten func()
	// life ends with podsync, not with a sync. round is the sync's that runs, whose trace what outlives it is in.
	life, round context.Context
	// refreshing and sweeping are the background tasks that run.
	refreshing, sweeping *backgroundTask
	// stops, pulls and creating outlive the sync that began them.
	stops map[string]*stopping
	// stoppedSandboxes are those, by id, whose network the runtime has taken down for this worker.
	stoppedSandboxes map[string]bool
	pulls            map[string]*pull[startImages]
	volumePulls      map[string]*pull[*runtimeapi.ImageSpec]
	creating         *creation
	// ips are the pod's own, as they were read last.
	ips []string
	// goroutines counts the worker's own goroutines: image pulls and mounts under way.
	goroutines sync.WaitGroup
}

func newWorker(p *v1.Pod, source podsyncv1.PodSource, deps *Deps, metrics *Metrics) *worker {
	wanted := p
	if !source.Static() {
		p = withReportedResources(p)
	}
	return &worker{
		uid: p.UID, source: source, pod: p, wanted: wanted, deps: deps, metrics: metrics,
		woken: make(chan struct{}, 1), notices: newNotices(), stopped: make(chan struct{}),
		stale: make(chan struct{}, 1), mounting: make(chan struct{}, 1), pace: rate.NewLimiter(wakeRate, wakeBurst),
		standing: Standing{Phase: syncing.String(), Syncing: true},
		stops:    map[string]*stopping{}, stoppedSandboxes: map[string]bool{}, pulls: map[string]*pull[startImages]{},
		volumePulls: map[string]*pull[*runtimeapi.ImageSpec]{},
		remains:     map[string]remains{},
		history:     newHistory(), backoff: decide.NewBackoff(deps.MaxBackoff),
	}
}

// set gives the worker a newer version of its pod.
func (w *worker) set(p *v1.Pod) {
	w.mu.Lock()
	if w.removed {
		first := w.again == nil
		w.again = p
		w.mu.Unlock()
		if first {
			w.deps.Log.Info("pod re-added while terminating, will restart when it has ended", logkey.Pod, podName(p),
				logkey.PodUID, w.uid)
		}
		return
	}
	old, refused := w.pod, w.synced != nil && resized(w.wanted, p)
	w.wanted = p
	if w.synced != nil && !w.source.Static() {
		p = withResourcesOf(old, p)
	}
	w.pod = p
	sooner := w.endsSooner(old, p)
	if w.cancelSync != nil && sooner {
		w.cancelSync(errSyncCanceled)
	}
	w.mu.Unlock()
	if refused {
		w.deps.event(p, v1.EventTypeWarning, reasonResizeInfeasible,
			"changing the resources of a running pod is not built: its containers keep what they have, delete the pod "+
				"to change it")
		w.deps.Log.Warn("resize refused", logkey.Pod, podName(p), logkey.PodUID, w.uid)
	}
	if !equalMaps(old.Labels, p.Labels) || !equalMaps(old.Annotations, p.Annotations) {
		w.markStale() // volumes may show them
	}
	switch {
	case sooner || !onlyStatusChanged(old, p) || gatesChanged(old, p):
		w.publish()
		w.wake()
	case podutil.IsTerminal(old.Status.Phase) != podutil.IsTerminal(p.Status.Phase):
		w.publish() // which of its containers have run is known now
	}
	w.deps.Statuses.UpdateFromAPI(p)
}

// remove notifies the worker that its pod's object is gone.
func (w *worker) remove() {
	w.mu.Lock()
	w.removed, w.again = true, nil
	// A pod that is already stopping continues with its grace period, which is the same.
	if w.cancelSync != nil && !w.ending && w.pod.DeletionTimestamp == nil {
		w.cancelSync(errSyncCanceled)
	}
	w.mu.Unlock()
	w.deps.Admission.Removed(w.uid)
	w.deps.Objects.Unregister(w.uid) // the apiserver forbids the node to read what no pod of its names any more
	w.wake()
}

// wake makes the worker sync its pod again; wake-ups that come while it is awake become one. What woke it is reported
// before, if the sync that runs lasts.
func (w *worker) wake() {
	w.notices.add(wakeDelay)
	select {
	case w.woken <- struct{}{}:
	default:
	}
}

// A worker that others wake more often is woken later: pleg and the prober may do so as often as they like. The start of
// a pod of many containers wakes it dozens of times.
const (
	wakeRate  = 10 // a second
	wakeBurst = 50
)

// wakeByOthers wakes the worker for those who may call without end. Calls that come too often become one.
func (w *worker) wakeByOthers() {
	if w.pace.Allow() {
		w.wake()
		return
	}
	if w.waking.Swap(true) {
		return
	}
	time.AfterFunc(time.Second/wakeRate, func() {
		w.waking.Store(false) // first, so that a call from now on wakes it again
		w.wake()
	})
}

// run looks after the pod until nothing of it is left, or it is to be restarted (true), or ctx ends (false).
func (w *worker) run(ctx context.Context) (finished bool) {
	defer w.goroutines.Wait()
	p, _ := w.current()
	ctx = shares.WithOwner(ctx, p.Namespace)
	beside, end := context.WithCancel(ctx)
	defer end()
	defer w.notices.clear()
	w.goroutines.Go(func() { w.reportBeside(beside) })
	w.life, w.round = ctx, ctx
	w.deps.Statuses.UpdateFromAPI(p)
	timer := time.NewTimer(firstDelay(p))
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return false
		case <-w.woken:
		case <-timer.C:
		}
		again, done := w.trySync(ctx)
		if done {
			return true
		}
		timer.Reset(again)
	}
}

// trySync syncs the pod once and returns when to sync again.
func (w *worker) trySync(ctx context.Context) (again time.Duration, done bool) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	w.mu.Lock()
	w.cancelSync = cancel
	if w.tried.IsZero() {
		w.tried = time.Now()
	}
	p, removed := w.pod, w.removed
	w.synced = p
	w.mu.Unlock()
	if w.phase == syncing {
		w.expire(p)
		if deadline := w.deadline(p); !deadline.IsZero() {
			var end context.CancelFunc
			ctx, end = context.WithDeadlineCause(ctx, deadline, errSyncCanceled)
			defer end()
		}
	}

	began, phase := time.Now(), w.phase
	w.pending = nil
	w.note(func(s *Standing) { s.Began = began })
	again, done, err := w.step(ctx, p, removed)
	w.mu.Lock()
	w.cancelSync = nil
	w.mu.Unlock()
	w.metrics.observeSync(phase, began)
	switch {
	case err == nil:
		w.failures, w.history.failed = 0, ""
		w.noteSync(w.pending, 0, again)
		return again, done
	case context.Cause(ctx) != nil:
		return 0, false // canceled: at once; or podsync ends, and run sees that
	}
	if w.history.fails(err) {
		w.deps.Log.Error("pod sync failed", logkey.Pod, podName(p), logkey.PodUID, w.uid, logkey.Err, err)
	}
	w.failures++
	again = retryAfter(err, w.failures)
	w.noteSync(err, w.failures, again)
	return again, false
}

func (w *worker) step(ctx context.Context, p *v1.Pod, removed bool) (again time.Duration, done bool, err error) {
	switch e := w.currentEviction(); {
	case removed:
		w.move(causeRemoved)
	case p.DeletionTimestamp != nil:
		w.move(causeDeleted)
	case e != nil:
		w.move(e.cause)
	}
	switch w.phase {
	case syncing:
		err = w.traced(ctx, p, "syncPod", func(ctx context.Context) error {
			var err error
			again, err = w.sync(ctx, p)
			return err
		})
		if err != nil || w.phase == syncing {
			return again, false, err
		}
		fallthrough // it has come to its end by itself
	case terminating:
		err := w.traced(ctx, p, "syncTerminatingPod", func(ctx context.Context) error { return w.stop(ctx, p, removed) })
		if err != nil {
			return 0, false, err
		}
		fallthrough
	case terminated:
		err := w.traced(ctx, p, "syncTerminatedPod", func(ctx context.Context) error { return w.release(ctx, p) })
		if err != nil {
			return 0, false, err
		}
		fallthrough
	default:
		if !removed {
			return w.awaitRemoval(p)
		}
		if w.restarts() {
			w.deps.Admission.Forget(w.uid) // it is judged anew
			w.deps.Log.Info("pod is restarted: its source removed it and wants it again", logkey.Pod, podName(p),
				logkey.PodUID, w.uid)
			return 0, true, nil
		}
		w.forget()
		if err := w.removeRemains(ctx, p); err != nil {
			return 0, false, err
		}
		return 0, true, nil
	}
}

// traced does a part of a sync as a span of the pod's trace.
func (w *worker) traced(ctx context.Context, p *v1.Pod, name string, do func(context.Context) error) error {
	ctx, span := w.deps.Traces.Begin(ctx, p, name)
	w.round = ctx
	err := do(ctx)
	span.End(err)
	return err
}

// publish puts the pod's newest version on the bus for the other services.
func (w *worker) publish() {
	w.mu.Lock()
	defer w.mu.Unlock() // held, so that an older version never comes after a newer one
	w.deps.Reporter.Pod(told(w.pod, w.ended), w.source, w.ending || w.pod.DeletionTimestamp != nil)
}

// hasReported reports whether the pod's state was reported since podsync started; one that is gone has
// nothing to report. late says that it was not, although the pod's syncs began long ago.
func (w *worker) hasReported() (reported, late bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	reported = w.reported || w.removed
	return reported, !reported && !w.tried.IsZero() && time.Since(w.tried) >= lateReport
}

// wantedAgain returns the version of the pod that came after its removal, or nil.
func (w *worker) wantedAgain() *v1.Pod {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.again
}

func (w *worker) latest() *v1.Pod {
	p, _ := w.current()
	return p
}

// current returns the pod's newest version, and whether it has ended.
func (w *worker) current() (*v1.Pod, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.pod, w.ended
}

func (w *worker) hasEnded() bool {
	_, ended := w.current()
	return ended
}

func (w *worker) end() {
	w.mu.Lock()
	w.ended = true
	close(w.stopped)
	w.deps.Admission.Ended(w.uid)
	w.mu.Unlock()
	w.publish()
}

// forget has the pod forgotten by what keeps something of it by its UID, and lets another static pod of its name begin.
func (w *worker) forget() {
	if w.isForgotten() {
		return
	}
	w.deps.Objects.Unregister(w.uid)
	w.deps.Statuses.Forget(w.uid)
	w.deps.Reporter.Forget(w.uid)
	w.deps.Admission.Forget(w.uid)
	w.mu.Lock()
	w.forgotten = true
	w.mu.Unlock()
	w.onForgotten()
}

func (w *worker) isForgotten() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.forgotten
}

func (w *worker) seen() (string, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.digest, w.read
}

// readState reads what the runtime has of the pod, without the containers that count no more, and remembers of it what
// a sync needs.
func (w *worker) readState(ctx context.Context) (*pod.State, error) {
	w.notices.clear()
	state, err := w.deps.Runtime.State(ctx, w.uid)
	if err != nil {
		if ctx.Err() == nil && w.failures == 1 { // reported once: when it does not pass at once
			w.deps.event(w.latest(), v1.EventTypeWarning, reasonFailedSync, "error determining status: %v", plain(err))
		}
		return nil, transient("read the pod's state", err)
	}
	w.mu.Lock()
	w.digest, w.read = state.Digest(), true
	w.standing.State = state
	w.mu.Unlock()
	state = w.counting(state)
	w.see(state)
	return state, nil
}

// endsSooner reports whether p must end and its older version need not, or must end within
// a shorter grace period than it. The caller holds mu.
func (w *worker) endsSooner(old, p *v1.Pod) bool {
	if p.DeletionTimestamp == nil || w.ended {
		return false
	}
	if old.DeletionTimestamp == nil && !w.ending {
		return true
	}
	return w.grace(p) < w.grace(old)
}

// onlyStatusChanged recognises the echo of our own patches, which needs no sync.
func onlyStatusChanged(old, p *v1.Pod) bool {
	return old.Generation == p.Generation && old.Generation != 0 &&
		(old.DeletionTimestamp == nil) == (p.DeletionTimestamp == nil) &&
		equalMaps(old.Labels, p.Labels) && equalMaps(old.Annotations, p.Annotations)
}

func podName(p *v1.Pod) string { return p.Namespace + "/" + p.Name }

func equalMaps(a, b map[string]string) bool { return maps.Equal(a, b) }
