package pods

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/microlet/microlet/services/internal/logkey"
	"github.com/microlet/microlet/services/internal/podutil"
	"github.com/microlet/microlet/services/podsync/internal/admission"
	"github.com/microlet/microlet/services/podsync/internal/criconfig"
	"github.com/microlet/microlet/services/podsync/internal/logs"
	"github.com/microlet/microlet/services/podsync/internal/pod"
	"github.com/microlet/microlet/services/podsync/internal/pod/decide"
	"github.com/microlet/microlet/services/podsync/internal/pod/fields"
)

// iterations bounds how often one sync may decide and act. Each iteration brings the pod nearer to rest. A sync that
// needs more has met something that keeps changing.
const iterations = 5

// startRetry is how long a pod waits after a container could not be started. It is the kubelet's back-off period.
const startRetry = 10 * time.Second

// sync makes the pod run. If the pod has ended by itself, the phase is terminating afterwards.
func (w *worker) sync(ctx context.Context, p *v1.Pod) (again time.Duration, err error) {
	state, err := w.readState(ctx)
	if err != nil {
		return 0, err
	}
	if err := w.supersede(ctx, p); err != nil {
		return 0, err
	}
	w.adopt(p, state)
	if admitted, err := w.admit(ctx, p, state); err != nil || !admitted {
		return w.afterFailure(p, err, time.Time{})
	}
	w.beginBackground(ctx, p, state)
	// A pod that has ended is not refused: what it holds is given back.
	w.history.refusedEphemeral = nil
	refusal := fields.Check(p, w.deps.Gated...)
	w.standing.noteRefused(refusal)
	if refusal != nil && !podutil.IsTerminal(p.Status.Phase) &&
		!w.mayGoOn(p, state, refusal) {
		return w.refuse(p, state, refusal), nil
	}
	w.forbidEphemeral(p)
	for range iterations {
		actions := w.decide(p, state)
		w.holdEphemeral(ctx, p, &actions)
		w.hold(p, actions.Wait)
		if actions.Finished {
			w.move(causeEnded)
			return 0, nil
		}
		if idle(&actions) {
			return w.rest(ctx, p, state, actions.Wake), nil
		}
		w.reportBefore(p, state, &actions)
		if wait, held := w.holdWholeRestart(&actions); held != nil {
			again, err := w.afterFailure(p, held, actions.Wake)
			return min(again, wait), err
		}
		failed := w.act(ctx, p, state, &actions)
		if context.Cause(ctx) != nil {
			return 0, failed
		}
		if w.reporter.isRejected() || errors.Is(failed, errRegranted) {
			return 0, nil
		}
		before := state
		if state, err = w.readState(ctx); err != nil {
			return 0, err
		}
		if failed != nil {
			w.reporter.report(p, state)
			again, err := w.afterFailure(p, failed, actions.Wake)
			if hasEndedSince(before, state) {
				again = min(again, transientRetry)
			}
			return again, err
		}
	}
	w.reporter.report(p, state)
	return 0, transient("sync the pod", fmt.Errorf("still changing after %d iterations", iterations))
}

// reportBefore reports the state before a decision is carried out. The steps of a resize are reported when they are
// done, or when they last.
func (w *worker) reportBefore(p *v1.Pod, state *pod.State, a *decide.Actions) {
	if !onlyResizes(a) {
		w.reporter.report(p, state)
	}
}

// adopt has the first sync take over what an earlier podsync has left of the pod.
func (w *worker) adopt(p *v1.Pod, state *pod.State) {
	if !w.history.adopted {
		w.deps.Objects.Register(p)
		w.backoff.Adopt(state)
		w.history.adopted = true
	}
}

// beginBackground begins what does not depend on the outcome of the sync: a container that cannot be started must not
// keep the others' volumes from being refreshed, nor sandboxes that nothing needs from being removed.
func (w *worker) beginBackground(ctx context.Context, p *v1.Pod, state *pod.State) {
	if state.AnyRunning() {
		w.keepFresh(ctx, p)
	}
	w.sweep(ctx, p, state)
}

// rest ends a sync that has nothing to do any more. It returns when to look again.
func (w *worker) rest(ctx context.Context, p *v1.Pod, state *pod.State, wake time.Time) time.Duration {
	w.history.delayed = ""
	if w.reporter.report(p, state) {
		w.deps.Traces.Rest(w.uid)
	}
	w.keepFresh(ctx, p)
	w.sweep(ctx, p, state)
	return w.untilNext(sooner(wake, w.deadline(p)))
}

func (w *worker) decide(p *v1.Pod, state *pod.State) decide.Actions {
	results := w.deps.probeResults(p)
	in := decide.Input{
		Pod: p, State: state, Now: time.Now(), Backoff: w.backoff, Hash: criconfig.ContainerHash,
		Liveness: results.Liveness, Startup: results.Startup,
		KeepDead: w.deps.KeepDead, Stopped: w.stops.sandboxes, Refused: w.history.refusedEphemeral,
		Logged: w.loggedCounts(p, state), Unremoved: w.remains.restartCounts(),
		Owed: w.reporter.owes(),
	}
	if last, ok := w.deps.Statuses.Last(w.uid); ok {
		in.Reported = &last
	}
	var unread error
	in.Resizing, unread = w.resizing(p, state)
	a := decide.Decide(in)
	if unread != nil {
		unreadable(&a, unread)
	}
	w.noteResize(p, state, &a)
	return a
}

// loggedCounts returns, of the containers that the runtime has no instance of, the restart counts that their logs leave
// free.
func (w *worker) loggedCounts(p *v1.Pod, state *pod.State) map[string]int32 {
	counts := map[string]int32{}
	for c := range podutil.AllContainers(&p.Spec) {
		if state.Latest(c.Name) == nil {
			counts[c.Name] = w.deps.Logs.NextRestartCount(logs.Pod{Namespace: p.Namespace, Name: p.Name, UID: w.uid}, c.Name)
		}
	}
	return counts
}

// idle reports whether a decision has nothing to carry out.
func idle(a *decide.Actions) bool {
	return a.StopPod == nil && len(a.Kill) == 0 && len(a.Remove) == 0 && len(a.Reset) == 0 && len(a.Resize) == 0 &&
		a.Sandbox == nil && len(a.Start) == 0
}

// sooner is the earlier of two times of which either may be zero, for never.
func sooner(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// untilNext is the time to the next sync: when the decision changes by itself, or the resync.
func (w *worker) untilNext(wake time.Time) time.Duration {
	next := jitter(w.deps.Resync)
	if wake.IsZero() {
		return next
	}
	return min(next, max(time.Until(wake), 0))
}

// act carries out one decision, in the order of its fields. The dead containers that it gives up count no more from
// here on. sweep removes them, as no start waits for a removal.
func (w *worker) act(ctx context.Context, p *v1.Pod, state *pod.State, a *decide.Actions) error {
	w.reporter.noteRestarting(a)
	defer w.reporter.noteRestarting(&decide.Actions{})
	if resizes(a) {
		w.deps.Allocation.Actuating(p)
	}
	if a.StopPod != nil {
		if err := w.stopPod(ctx, p, a.StopPod); err != nil {
			return err
		}
	}
	if err := w.kill(ctx, p, a.Kill); err != nil {
		return err
	}
	w.remains.passOver(state, a)
	if len(a.Reset) > 0 {
		w.noteWholeRestart(p)
	}
	failed := w.resize(ctx, p, a)
	if a.Sandbox == nil && len(a.Start) == 0 || ctx.Err() != nil || failed == nil && isApart(a) {
		return failed
	}
	w.discard(ctx, state, a)
	if err := w.start(ctx, p, state, a); err != nil {
		return err // the resize is tried again in any case
	}
	return failed
}

// refuse reports a pod that uses fields that are not supported: its containers wait. Containers that run already,
// started by a kubelet before us, run on, and their tokens are refreshed.
func (w *worker) refuse(p *v1.Pod, state *pod.State, refusal error) time.Duration {
	for i := range p.Spec.Containers {
		w.reporter.waits(p.Spec.Containers[i].Name, reasonCreateContainerConfigError, refusal.Error())
	}
	w.reportRefusal(p, refusal)
	w.reporter.report(p, state)
	return jitter(w.deps.Resync)
}

// neverRan reports whether no container of the pod was ever reported.
func neverRan(p *v1.Pod) bool {
	return len(p.Status.ContainerStatuses)+len(p.Status.InitContainerStatuses)+len(
		p.Status.EphemeralContainerStatuses) == 0
}

// mayGoOn reports whether a refusal concerns only ephemeral containers that were added to a pod that runs, and cannot
// be removed from it again. They are not started, and the pod runs on.
func (w *worker) mayGoOn(p *v1.Pod, state *pod.State, refusal error) bool {
	var refused *fields.UnsupportedError
	if !errors.As(refusal, &refused) || !refused.Only("spec.ephemeralContainers") || len(state.Containers) == 0 {
		return false
	}
	for i := range p.Spec.EphemeralContainers {
		if refused.Names(fmt.Sprintf("spec.ephemeralContainers[%d]", i)) {
			w.refuseEphemeral(p, p.Spec.EphemeralContainers[i].Name, refusal)
		}
	}
	return true
}

// forbidEphemeral refuses the ephemeral containers that may not join this pod.
func (w *worker) forbidEphemeral(p *v1.Pod) {
	for i := range p.Spec.EphemeralContainers {
		c := (*v1.Container)(&p.Spec.EphemeralContainers[i].EphemeralContainerCommon)
		v := w.deps.ContainerAdmission.AdmitEphemeral(p, c)
		if v.Admitted() {
			v = admission.ContainerNumber{}.AdmitEphemeral(p, i)
		}
		if !v.Admitted() {
			w.refuseEphemeral(p, c.Name, errors.New(v.Message))
		}
	}
}

// refuseEphemeral keeps an ephemeral container from being started in this sync.
func (w *worker) refuseEphemeral(p *v1.Pod, name string, refusal error) {
	w.reportRefusal(p, refusal)
	if w.history.refusedEphemeral == nil {
		w.history.refusedEphemeral = map[string]bool{}
	}
	w.history.refusedEphemeral[name] = true
	w.reporter.waits(name, reasonCreateContainerConfigError, refusal.Error())
}

// holdEphemeral takes those ephemeral containers out of a decision whose images are not present yet, and begins their
// pulls: the containers of the pod proper must not wait for them. The end of a pull wakes the worker.
func (w *worker) holdEphemeral(ctx context.Context, p *v1.Pod, a *decide.Actions) {
	a.Start = slices.DeleteFunc(a.Start, func(s decide.Start) bool {
		return s.Ephemeral && !w.pulls.beginEphemeral(ctx, p, s.Spec, w.wake)
	})
}

// reportRefusal reports a refusal once for each generation of the pod.
func (w *worker) reportRefusal(p *v1.Pod, refusal error) {
	if w.history.announced && w.history.refused == p.Generation {
		return
	}
	w.history.announced, w.history.refused = true, p.Generation
	w.deps.event(p, v1.EventTypeWarning, reasonFailed, "Error: %s", refusal.Error())
	w.metrics.Refused.Inc()
	w.deps.Log.Warn("pod refused", logkey.Pod, podName(p), logkey.PodUID, w.uid, logkey.Err, refusal)
}

// hold notes the containers that CrashLoopBackOff holds.
func (w *worker) hold(p *v1.Pod, waits []decide.Wait) {
	w.standing.note(func(s *Standing) { s.Waits = waits })
	for _, wait := range waits {
		if w.reporter.why(wait.Name).Message != wait.Message {
			w.deps.containerEvent(p, wait.Name, v1.EventTypeWarning, reasonBackOff, "%s",
				"Back-off restarting failed container "+wait.Name+" in pod "+p.Name+"_"+p.Namespace+"("+string(p.UID)+
					")")
		}
		w.reporter.waits(wait.Name, reasonCrashLoopBackOff, wait.Message)
	}
}

// hasEndedSince reports whether a container has ended between two states, as a container does that the runtime could
// not start. pleg does not report it, since this worker has seen it, and its restart must not wait for what else
// failed. A container that was only created does not count.
func hasEndedSince(before, now *pod.State) bool {
	ended := func(c pod.Container) bool { return c.State == runtimeapi.ContainerState_CONTAINER_EXITED }
	return slices.ContainsFunc(now.Containers, func(c pod.Container) bool {
		same := func(other pod.Container) bool { return other.ID == c.ID && ended(other) }
		return ended(c) && !slices.ContainsFunc(before.Containers, same)
	})
}

// afterFailure returns when to try again. A failure that the pod's own status shows is no error of the sync.
func (w *worker) afterFailure(p *v1.Pod, failed error, wake time.Time) (time.Duration, error) {
	var failure *reportedError
	if !errors.As(failed, &failure) {
		return 0, failed
	}
	w.pending = failed
	if w.history.delays(failed) {
		w.deps.Log.Warn("pod waits", logkey.Pod, podName(p), logkey.PodUID, w.uid, logkey.Err, failed)
	}
	again := failure.again
	if !wake.IsZero() {
		again = min(again, max(time.Until(wake), 0))
	}
	return again, nil
}
