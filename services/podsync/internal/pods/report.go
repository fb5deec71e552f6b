package pods

import (
	"context"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/microlet/microlet/services/internal/podutil"
	"github.com/microlet/microlet/services/podsync/internal/pod"
	"github.com/microlet/microlet/services/podsync/internal/pod/decide"
	"github.com/microlet/microlet/services/podsync/internal/pod/fields"
	"github.com/microlet/microlet/services/podsync/internal/pod/status"
)

const (
	// resultDelay is how long the end of a container that was stopped, or the result of a probe, waits for a report: many
	// that come at one time make one, and none if the worker is idle and reports them itself.
	resultDelay = 200 * time.Millisecond
	// wakeDelay is the same for everything else. A start, of which several wakes tell, is usually over by then.
	wakeDelay = 2 * time.Second
)

// report sends the pod's status to the API server and the bus, and returns whether the pod is ready.
func (w *worker) report(p *v1.Pod, state *pod.State) (ready bool) {
	w.reporting.Lock()
	defer w.reporting.Unlock()
	return w.reportNewest(p, state, false)
}

// reportNewest reports the state, or a newer one that was reported already. What is reported beside a sync does not end
// the pod: that is the sync's to do. The caller holds reporting.
func (w *worker) reportNewest(p *v1.Pod, state *pod.State, beside bool) (ready bool) {
	if w.shown != nil && w.shown.Read.After(state.Read) {
		state = w.shown
	}
	w.shown = state
	state = w.unlessRestarting(p, state)
	s := w.status(p, state)
	if last, ok := w.deps.Statuses.Last(w.uid); beside && ok && podutil.IsTerminal(s.Phase) {
		s.Phase, s.Reason, s.Message = last.Phase, last.Reason, last.Message
	}
	if podutil.IsTerminal(s.Phase) && !state.AnyRunning() {
		// The scheduler reuses the resources as soon as it sees this status, so they are released first.
		w.deps.Admission.Ended(w.uid)
	}
	w.deps.Statuses.Set(p, s)
	w.deps.Reporter.Status(w.uid, state, &s)
	w.mu.Lock()
	w.reported = true
	w.mu.Unlock()
	return slices.ContainsFunc(s.Conditions, func(c v1.PodCondition) bool {
		return c.Type == v1.PodReady && c.Status == v1.ConditionTrue
	})
}

// reportBeside reports what happens to the pod while a sync lasts, for as long as the worker lives: probe results, and
// containers that end. A sync lasts while a container is stopped, an image pulled, a volume mounted or a hook run.
func (w *worker) reportBeside(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-w.notices.due:
		}
		if !w.notices.take() || !w.reportIf(nil) {
			continue
		}
		state, err := w.deps.Runtime.State(ctx, w.uid)
		if err != nil {
			w.notices.add(transientRetry)
			continue
		}
		w.reportIf(w.counting(state))
	}
}

// reportIf reports the state, if it is not nil, of a pod of which the worker has reported one before and of which
// something may run. It returns whether the pod is one.
func (w *worker) reportIf(state *pod.State) bool {
	w.reporting.Lock()
	defer w.reporting.Unlock()
	w.mu.Lock()
	p, is := w.synced, w.reported && !w.removed && w.phase < terminated
	w.mu.Unlock()
	if is && state != nil {
		w.reportNewest(p, state, true)
	}
	return is
}

// unlessRestarting returns the state with those containers as running that the worker has stopped to start them again
// at once, and whose policy would not: the API takes such an end as one for good. The caller holds reporting.
func (w *worker) unlessRestarting(p *v1.Pod, state *pod.State) *pod.State {
	if len(w.restarting) == 0 {
		return state
	}
	kept := *state
	kept.Containers = slices.Clone(state.Containers)
	for i := range kept.Containers {
		c := &kept.Containers[i]
		spec := podutil.Container(&p.Spec, c.Name)
		if w.restarting[c.ID] && spec != nil && !decide.MayRun(c) && !decide.ShouldRestart(p, spec, c.ExitCode) {
			c.State = runtimeapi.ContainerState_CONTAINER_RUNNING
		}
	}
	return &kept
}

// noteRestarting notes which containers a decision stops to start them again.
func (w *worker) noteRestarting(a *decide.Actions) {
	restarting := map[string]bool{}
	for i := range a.Kill {
		restarting[a.Kill[i].ID] = a.Kill[i].Restart
	}
	if a.StopPod != nil && a.Sandbox != nil {
		for i := range a.StopPod.Containers {
			restarting[a.StopPod.Containers[i].ID] = true
		}
	}
	w.reporting.Lock()
	defer w.reporting.Unlock()
	w.restarting = restarting
}

// waits notes why a container could not be started last.
func (w *worker) waits(name, reason, message string) {
	w.reporting.Lock()
	defer w.reporting.Unlock()
	w.history.waits(name, reason, message)
}

// runs notes that a container has no reason to wait any more.
func (w *worker) runs(name string) {
	w.reporting.Lock()
	defer w.reporting.Unlock()
	w.history.runs(name)
}

// status makes the pod's status. The caller holds reporting.
func (w *worker) status(p *v1.Pod, state *pod.State) v1.PodStatus {
	in := status.Inputs{
		Now:         time.Now(),
		StopSignals: slices.Contains(w.deps.Gated, fields.StopSignal),
		Terminal:    w.phase >= terminated,
		Waiting:     w.history.reasons(p, status.Waiting{}),
		HostIPs:     w.deps.HostIPs.Known(),

		RecursiveReadOnly: w.deps.RuntimeState.RecursiveReadOnly(p),
	}
	results := w.probeResults(p)
	in.Readiness, in.Startup = results.Readiness, results.Startup
	if e := w.currentEviction(); e != nil {
		in.Override = &e.override
	}
	if last, ok := w.deps.Statuses.Last(w.uid); ok {
		in.Old = &last
	}
	switch {
	case w.rejection != nil:
		return status.Rejected(p, w.rejection.Reason, w.rejection.Message, in)
	case podutil.IsTerminal(p.Status.Phase) && neverRan(p) && len(state.Containers) == 0:
		return *p.Status.DeepCopy() // an earlier podsync, or a kubelet, rejected it
	}
	s := status.Generate(p, state, in)
	if message := status.FamilyMismatch(p, in, &s); message != "" {
		w.deps.event(p, v1.EventTypeWarning, "HostIPsIPFamilyMismatch", "%s", message)
	}
	if w.phase >= terminated {
		s = status.Terminate(p, s, in.Now)
	}
	return s
}
