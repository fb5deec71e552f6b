package allocation

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/microlet/microlet/services/internal/logkey"
	"github.com/microlet/microlet/services/podsync/internal/admission"
	"github.com/microlet/microlet/services/podsync/internal/pod"
)

// Admission judges resizes; see admission.Admitter.
type Admission interface {
	// Resize judges a version of an admitted pod with other resources. One that fits has its place, and is granted or
	// given up by the Resizing; for others that is nil.
	Resize(ctx context.Context, p *v1.Pod) (*admission.Resizing, admission.Result, error)
}

// trigger is why those that wait are looked at. It is a label of metrics.
type trigger string

const (
	podResized    trigger = "pod_resized"
	podUpdated    trigger = "pod_updated"
	podsAdded     trigger = "pods_added"
	podsRemoved   trigger = "pods_removed"
	podTerminated trigger = "pod_terminated"
	periodicRetry trigger = "periodic_retry"
)

const (
	// period is how often those that wait are looked at when nothing happens.
	period = 3 * time.Minute
	// soon is when a decision is made again that failed: the runtime does not answer, or the disk takes no write.
	soon = 10 * time.Second
	// lateGrant is how long a grant may take until the pod's worker goes on without it.
	lateGrant = time.Second
)

// trigger has Run look at those that wait. The caller holds mu.
func (a *Allocation) trigger(why trigger) {
	if !slices.Contains(a.triggers, why) {
		a.triggers = append(a.triggers, why)
	}
	a.wake()
}

// wake has Run look at the triggers, and at when the next decision is due.
func (a *Allocation) wake() {
	select {
	case a.signal <- struct{}{}:
	default:
	}
}

// Run decides and writes until ctx ends.
func (a *Allocation) Run(ctx context.Context) error {
	var all sync.WaitGroup
	defer all.Wait()
	writing, stop := context.WithCancel(context.WithoutCancel(ctx))
	all.Go(func() { a.granted.run(writing) })
	all.Go(func() { a.actuated.run(writing) })
	var decisions sync.WaitGroup
	defer func() {
		decisions.Wait() // what was decided is written
		stop()
	}()
	select {
	case <-a.o.Synced:
	case <-ctx.Done():
		return nil
	}
	a.dropOrphans()
	timer := time.NewTimer(period)
	defer timer.Stop()
	for {
		why := a.take()
		if len(why) > 0 {
			a.pass(ctx, why, &decisions)
		}
		timer.Reset(a.untilRetry())
		select {
		case <-ctx.Done():
			return nil
		case <-a.signal:
		case <-timer.C:
			a.mu.Lock()
			a.trigger(periodicRetry)
			a.mu.Unlock()
		}
	}
}

// dropOrphans removes the pods from the files that no source has.
func (a *Allocation) dropOrphans() {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, f := range []*file{a.granted, a.actuated} {
		for _, uid := range f.records.UIDs() {
			if a.pods[uid] == nil {
				f.later(uid)
			}
		}
	}
}

func (a *Allocation) take() []trigger {
	a.mu.Lock()
	defer a.mu.Unlock()
	why := a.triggers
	a.triggers = nil
	return why
}

func (a *Allocation) untilRetry() time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	until := period
	for _, e := range a.pods {
		for _, due := range []time.Time{e.notBefore, e.again} {
			if e.mayBeDecided() && !due.IsZero() {
				until = min(until, max(time.Until(due), 0))
			}
		}
	}
	return until
}

// mayBeDecided reports whether the pod waits for a decision that is not under way. The caller holds mu.
func (e *entry) mayBeDecided() bool {
	return e.waits && !e.deciding && e.wanted.DeletionTimestamp == nil
}

// pass decides on those that wait, in their order. An update of a pod gives the others no room, so that it has only
// those looked at that were not decided upon yet.
func (a *Allocation) pass(ctx context.Context, why []trigger, decisions *sync.WaitGroup) {
	reason := why[0]
	if i := slices.IndexFunc(why, func(t trigger) bool { return t != podUpdated }); i >= 0 {
		reason = why[i]
	}
	for _, uid := range a.waiting(reason != podUpdated) {
		if ctx.Err() != nil {
			return
		}
		a.decide(ctx, uid, reason, decisions)
	}
}

// waiting returns the pods that wait in their order; all, or those alone that were not decided upon yet.
func (a *Allocation) waiting(all bool) []types.UID {
	a.mu.Lock()
	defer a.mu.Unlock()
	var turns []turn
	now := time.Now()
	for _, e := range a.pods {
		if e.mayBeDecided() && (all || e.fresh) && !now.Before(e.notBefore) {
			turns = append(turns, e.turnOf())
		}
	}
	slices.SortFunc(turns, turn.compare)
	uids := make([]types.UID, len(turns))
	for i, t := range turns {
		uids[i] = t.uid
	}
	return uids
}

// decide decides on one pod. A grant is written beside the decisions that follow.
func (a *Allocation) decide(ctx context.Context, uid types.UID, why trigger, decisions *sync.WaitGroup) {
	a.mu.Lock()
	e := a.pods[uid]
	if e == nil || !e.waits || e.deciding {
		a.mu.Unlock()
		return
	}
	p, fresh := e.wanted, e.fresh
	e.deciding, e.fresh, e.notBefore, e.again = true, false, time.Time{}, time.Time{}
	a.mu.Unlock()
	resizing, result, err := a.o.Admission.Resize(ctx, p)
	if resizing != nil {
		decisions.Go(func() { a.grant(ctx, e, p, resizing, why) })
		return
	}
	if a.postpone(e, p, result, err) || fresh {
		a.o.Changed(uid)
	}
}

// postpone notes that a resize is not granted, and reports whether the pod's conditions have changed.
func (a *Allocation) postpone(e *entry, p *v1.Pod, result admission.Result, err error) (changed bool) {
	log := a.o.Log.With(logkey.Pod, p.Namespace+"/"+p.Name, logkey.PodUID, p.UID)
	a.mu.Lock()
	e.deciding = false
	switch {
	case a.pods[p.UID] != e || !e.waits || e.fresh: // it has changed since, and is decided upon again
		if e.waits {
			a.trigger(podUpdated)
		}
		a.mu.Unlock()
		return false
	case err != nil:
		e.notBefore = time.Now().Add(soon)
		a.mu.Unlock()
		log.Warn("resize cannot be judged, trying again", logkey.Err, err)
		return false
	case result.Admitted(): // another grant decides whether it fits
		a.blocked = true
		a.mu.Unlock()
		return false
	}
	reason := v1.PodReasonDeferred
	if result.Infeasible != "" {
		reason = v1.PodReasonInfeasible
		e.waits = false
		a.metrics.infeasible.WithLabelValues(result.Infeasible).Inc()
	}
	before := e.pending
	now := newCondition(v1.PodResizePending, before, reason, result.Message, p.Generation)
	same := before != nil && before.Reason == reason && before.ObservedGeneration == p.Generation
	if same && now != before {
		// The figures may change with each pod that comes or goes. One who makes pods must not cause a call for each.
		if next := before.LastProbeTime.Add(soon); time.Now().Before(next) {
			now, e.again = before, next
		}
	}
	a.setPending(e, now)
	a.mu.Unlock()
	if !same {
		log.Info("resize is pending", logkey.Reason, result.Reason, logkey.Message, result.Message)
		event := reasonResizeDeferred
		if reason == v1.PodReasonInfeasible {
			event = reasonResizeInfeasible
		}
		a.o.Events.Event(reference(p), v1.EventTypeWarning, event, message(reason, p, p.Generation, result.Message))
	}
	return before != now
}

// finished notes the end of a grant. Others that wait are looked at if it gave them room, or if one of them could not
// be judged before. The caller holds mu.
func (a *Allocation) finished(room bool) {
	if room || a.blocked {
		a.blocked = false
		a.trigger(podResized)
	}
}

// grant carries out a decision: it writes what is granted, which counts from then on.
func (a *Allocation) grant(ctx context.Context, e *entry, p *v1.Pod, r *admission.Resizing, why trigger) {
	now := pod.ResourcesOf(p)
	late := time.AfterFunc(lateGrant, func() { a.o.Changed(p.UID) })
	defer late.Stop()
	granted, err := r.Grant(ctx, func() error { return a.granted.write(ctx, p.UID, now) })
	if ctx.Err() != nil && err != nil {
		return // podsync ends
	}
	if err != nil {
		if a.postpone(e, p, admission.Result{
			Reason: v1.PodReasonDeferred, Message: fmt.Sprintf("The new resources cannot be recorded on the node: %v", err),
		}, nil) {
			a.o.Changed(p.UID)
		}
		a.mu.Lock()
		e.notBefore = time.Now().Add(soon)
		a.wake()
		a.finished(false)
		a.mu.Unlock()
		return
	}
	a.mu.Lock()
	e.deciding = false
	if !granted || e.ended || a.pods[p.UID] != e { // it has ended since
		a.granted.later(p.UID)
		a.finished(false)
		a.mu.Unlock()
		return
	}
	room := grows(p, e.granted.Of(p)) // of one resource at least
	e.granted = &now
	if e.pending != nil && e.pending.Reason == v1.PodReasonDeferred {
		a.metrics.accepted.WithLabelValues(string(why)).Inc()
	}
	a.resolve(e, accepted)
	a.setProgress(e, newCondition(v1.PodResizeInProgress, nil, "", "", p.Generation))
	a.consider(e, podUpdated)
	a.finished(room)
	a.mu.Unlock()
	a.o.Log.Info("resize is granted", logkey.Pod, p.Namespace+"/"+p.Name, logkey.PodUID, p.UID)
	a.o.Events.Event(reference(p), v1.EventTypeNormal, reasonResizeStarted, message("started", p, p.Generation, ""))
	a.o.Changed(p.UID)
}
