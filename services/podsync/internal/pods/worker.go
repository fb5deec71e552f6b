package pods

import (
	"context"
	"errors"
	"maps"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"

	podsyncv1 "github.com/microlet/microlet/proto/microlet/podsync/v1"
	"github.com/microlet/microlet/services/internal/logkey"
	"github.com/microlet/microlet/services/internal/podutil"
	"github.com/microlet/microlet/services/internal/shares"
	"github.com/microlet/microlet/services/podsync/internal/pod"
	"github.com/microlet/microlet/services/podsync/internal/pod/decide"
)

// errSyncCanceled ends a sync because a change of its pod makes its work wrong.
var errSyncCanceled = errors.New("sync canceled by a newer version of the pod")

// worker looks after one pod. A wake does not say what has happened, so the worker looks at everything again.
type worker struct {
	uid     types.UID
	source  podsyncv1.PodSource
	deps    *Deps
	metrics *Metrics
	woken   chan struct{}
	// onForgotten is called when only remains are left of the pod. It is set before run.
	onForgotten func()
	// pace bounds how often others wake the worker, and waking says that a wake is put off.
	pace   *rate.Limiter
	waking atomic.Bool

	inbox    *inbox
	standing *standing
	remains  *remains
	reporter *reporter
	mounts   *mounts
	tasks    *tasks
	loop
}

// loop is what belongs to the goroutine of run.
type loop struct {
	history history
	backoff *decide.Backoff
	pulls   *pulls
	stops   *stops
	// wholeRestarts have a back-off of their own.
	wholeRestarts wholeRestarts
	// creating is the call that brings something into the runtime; sweeping runs beside the syncs.
	creating, sweeping *task
	// admitted: the pod may run here.
	admitted bool
	// inForce is what was granted to the pod and is known to be in force; nil before that was looked at.
	inForce *pod.Resources
	refusal refusal
	// allocating is the question for the pod's devices.
	allocating allocating
	// predecessorEnded: what ran of the pod under an earlier manifest has ended.
	predecessorEnded bool
	// failures counts the syncs that failed one after another.
	failures int
	// pending is what the last sync could not do and the pod's own status shows; nil for nothing.
	pending error
	// last is the state in which everything had stopped for good; nil before.
	last *pod.State
	// ips are the pod's own, as they were read last.
	ips []string
}

func newWorker(p *v1.Pod, source podsyncv1.PodSource, deps *Deps, metrics *Metrics) *worker {
	w := &worker{
		uid: p.UID, source: source, deps: deps, metrics: metrics, woken: make(chan struct{}, 1),
		pace:  rate.NewLimiter(wakeRate, wakeBurst),
		inbox: newInbox(p, deps.Allocation), standing: newStanding(), remains: newRemains(), mounts: newMounts(),
		tasks: newTasks(),
	}
	w.reporter = newReporter(w.uid, deps, w.inbox, w.standing, w.remains)
	w.loop = loop{
		backoff: decide.NewBackoff(deps.MaxBackoff), pulls: newPulls(deps.Images, w.standing, w.tasks), stops: newStops(),
	}
	return w
}

// set gives the worker a newer version of its pod.
func (w *worker) set(p *v1.Pod) {
	u := w.inbox.set(p)
	if u.late {
		if u.first {
			w.deps.Log.Info("pod re-added while terminating, will restart when it has ended", logkey.Pod, podName(p),
				logkey.PodUID, w.uid)
		}
		return
	}
	if lacks := w.deps.Update(u.asked, p); lacks != "" {
		w.deps.event(p, v1.EventTypeWarning, reasonFailedNodeDeclaredFeatures, "%s", lacks)
		w.deps.Log.Warn("the node cannot do what a pod's newer version needs", logkey.Pod, podName(p), logkey.PodUID, w.uid,
			"why", lacks)
	}
	p = u.pod
	if !equalMaps(u.old.Labels, p.Labels) || !equalMaps(u.old.Annotations, p.Annotations) {
		w.mounts.markStale() // volumes may show them
	}
	switch {
	case u.sooner || !onlyStatusChanged(u.old, p) || gatesChanged(u.old, p):
		w.publish()
		if !u.decides || u.sooner {
			w.wake()
		}
	case podutil.IsTerminal(u.old.Status.Phase) != podutil.IsTerminal(p.Status.Phase):
		w.publish() // which of its containers have run is known now
	}
	w.deps.Statuses.UpdateFromAPI(p)
}

// granted gives the worker what is granted to its pod now, or how its resize fares.
func (w *worker) granted() {
	if w.inbox.regrant() {
		w.mounts.markStale() // volumes may show the resources
		w.publish()
	}
	w.wake()
}

// remove notifies the worker that its pod's object is gone.
func (w *worker) remove() {
	w.inbox.remove()
	w.deps.Admission.Removed(w.uid)
	w.deps.Objects.Unregister(w.uid) // the API server forbids the node to read objects that none of its pods names
	w.wake()
}

// wake makes the worker sync its pod again. Wakes that come during a sync become one. The cause of the wake is reported
// earlier if the sync that runs lasts.
func (w *worker) wake() {
	w.reporter.notice(wakeDelay)
	select {
	case w.woken <- struct{}{}:
	default:
	}
}

// These bound how often others wake a worker, because pleg and the prober may call at any rate. A wake beyond them
// comes later. The start of a pod of many containers wakes its worker dozens of times.
const (
	wakeRate  = 10 // a second
	wakeBurst = 50
)

// wakeByOthers wakes the worker for callers that may call at any rate. It has what happened reported after this time,
// unless the worker has read the runtime by then. Calls that come too often become one.
func (w *worker) wakeByOthers(reported time.Duration) {
	wake := func() {
		w.wake()
		if reported < wakeDelay {
			w.reporter.notice(reported)
		}
	}
	if w.pace.Allow() {
		wake()
		return
	}
	if w.waking.Swap(true) {
		return
	}
	time.AfterFunc(time.Second/wakeRate, func() {
		w.waking.Store(false) // first, so that a call from now on wakes it again
		wake()
	})
}

// run looks after the pod. It returns true when nothing of the pod is left or the pod is to be restarted, and false
// when ctx ends.
func (w *worker) run(ctx context.Context) (finished bool) {
	p := w.inbox.latest()
	ctx = shares.WithOwner(ctx, p.Namespace)
	defer w.endTasks()
	w.reporter.notices.begin(ctx, w.tasks, w.reporter.reportBeside)
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

// endTasks ends what runs beside the syncs, and waits for its end.
func (w *worker) endTasks() {
	w.reporter.notices.cancel()
	w.mounts.refreshing.cancel()
	w.tasks.end()
}

// trySync syncs the pod once and returns when to sync again.
func (w *worker) trySync(ctx context.Context) (again time.Duration, done bool) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	p, removed := w.inbox.begin(cancel)
	began, phase := time.Now(), w.reporter.inPhase()
	if phase == syncing {
		w.expire(p)
		if deadline := w.deadline(p); !deadline.IsZero() {
			var end context.CancelFunc
			ctx, end = context.WithDeadlineCause(ctx, deadline, errSyncCanceled)
			defer end()
		}
	}

	w.pending = nil
	w.standing.noteBegin(began)
	again, done, err := w.step(ctx, p, removed)
	w.inbox.endSync()
	w.metrics.observeSync(phase, began)
	switch {
	case err == nil:
		w.failures, w.history.failed = 0, ""
		w.standing.noteSync(w.pending, 0, again)
		return again, done
	case context.Cause(ctx) != nil:
		return 0, false // canceled: at once; or podsync ends, and run sees that
	}
	if w.history.fails(err) {
		w.deps.Log.Error("pod sync failed", logkey.Pod, podName(p), logkey.PodUID, w.uid, logkey.Err, err)
	}
	w.failures++
	again = retryAfter(err, w.failures)
	w.standing.noteSync(err, w.failures, again)
	return again, false
}

func (w *worker) step(ctx context.Context, p *v1.Pod, removed bool) (again time.Duration, done bool, err error) {
	switch e := w.inbox.currentEviction(); {
	case removed:
		w.move(causeRemoved)
	case p.DeletionTimestamp != nil:
		w.move(causeDeleted)
	case e != nil:
		w.move(e.cause)
	}
	switch w.reporter.inPhase() {
	case syncing:
		err = w.traced(ctx, p, "syncPod", func(ctx context.Context) error {
			var err error
			again, err = w.sync(ctx, p)
			return err
		})
		if err != nil || w.reporter.inPhase() == syncing {
			return again, false, err
		}
		fallthrough // it has ended by itself
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
			w.deps.Admission.Forget(w.uid) // it is admitted again
			w.deps.Allocation.Forget(w.uid)
			w.deps.Grants.Forget(w.uid)
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

// traced runs a part of a sync as a span of the pod's trace.
func (w *worker) traced(ctx context.Context, p *v1.Pod, name string, do func(context.Context) error) error {
	ctx, span := w.deps.Traces.Begin(ctx, p, name)
	err := do(ctx)
	span.End(err)
	return err
}

// publish puts the pod's newest version on the bus for the other services.
func (w *worker) publish() {
	w.inbox.publish(func(p, desired *v1.Pod, ends bool) { w.deps.Reporter.Pod(p, desired, w.source, ends) })
}

// hasReported reports whether the pod's state was reported since podsync started. A pod that is gone has nothing to
// report. late: it was not, although the pod's syncs began long ago.
func (w *worker) hasReported() (reported, late bool) {
	if _, removed := w.inbox.inSync(); removed {
		return true, false
	}
	return w.standing.hasReported()
}

// forget has everything that keeps something of the pod by its UID forget it, and lets another static pod of its name
// begin.
func (w *worker) forget() {
	if w.standing.isForgotten() {
		return
	}
	w.deps.Objects.Unregister(w.uid)
	w.deps.Statuses.Forget(w.uid)
	w.deps.Reporter.Forget(w.uid)
	w.deps.Admission.Forget(w.uid)
	w.deps.Allocation.Forget(w.uid)
	w.deps.Grants.Forget(w.uid)
	w.standing.noteForgotten()
	w.onForgotten()
}

// readState reads what the runtime has of the pod, without the containers that count no more, and keeps of it what a
// sync needs.
func (w *worker) readState(ctx context.Context) (*pod.State, error) {
	w.reporter.looks()
	state, err := w.deps.Runtime.State(ctx, w.uid)
	if err != nil {
		if ctx.Err() == nil && w.failures == 1 { // reported once: when it does not pass at once
			w.deps.event(w.inbox.latest(), v1.EventTypeWarning, reasonFailedSync, "error determining status: %v", plain(err))
		}
		return nil, transient("read the pod's state", err)
	}
	w.standing.noteState(state)
	state = w.remains.counting(state)
	w.see(state)
	return state, nil
}

// onlyStatusChanged recognizes the echo of our own patches, which needs no sync.
func onlyStatusChanged(old, p *v1.Pod) bool {
	return old.Generation == p.Generation && old.Generation != 0 &&
		(old.DeletionTimestamp == nil) == (p.DeletionTimestamp == nil) &&
		equalMaps(old.Labels, p.Labels) && equalMaps(old.Annotations, p.Annotations)
}

// onlyResourcesChanged reports whether nothing but its resources differs that a sync looks at.
func onlyResourcesChanged(old, p *v1.Pod) bool {
	return (old.DeletionTimestamp == nil) == (p.DeletionTimestamp == nil) && equalMaps(old.Labels, p.Labels) &&
		equalMaps(old.Annotations, p.Annotations) && !gatesChanged(old, p) &&
		equality.Semantic.DeepEqual(pod.ResourcesOf(old).Of(p).Spec, old.Spec)
}

func podName(p *v1.Pod) string { return p.Namespace + "/" + p.Name }

func equalMaps(a, b map[string]string) bool { return maps.Equal(a, b) }
