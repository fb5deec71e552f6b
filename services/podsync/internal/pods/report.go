package pods

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/microlet/microlet/services/internal/podutil"
	"github.com/microlet/microlet/services/podsync/internal/admission"
	"github.com/microlet/microlet/services/podsync/internal/pod"
	"github.com/microlet/microlet/services/podsync/internal/pod/decide"
	"github.com/microlet/microlet/services/podsync/internal/pod/fields"
	"github.com/microlet/microlet/services/podsync/internal/pod/status"
)

const (
	// resultDelay is how long the end of a container that was stopped, or the result of a probe, waits for a report. Many
	// that come at one time make one report, and none if the worker is idle and reports them itself.
	resultDelay = 200 * time.Millisecond
	// wakeDelay is the same for everything else. A start, which causes several wakes, is usually over by then.
	wakeDelay = 2 * time.Second
)

// reporter makes a pod's status and passes it on, for the sync and beside it.
type reporter struct {
	uid      types.UID
	deps     *Deps
	inbox    *inbox
	standing *standing
	remains  *remains

	// notices have what happened to the pod reported at a certain time, unless the worker reads the runtime before.
	notices timed

	// mu is held while a status is made and passed on, and guards what the status is made of. The goroutine of run alone
	// changes the phase, the rejection, and why containers wait.
	mu    sync.Mutex
	phase phase
	// rejection is why the pod may not run here; nil for a pod that may, or that is not decided on.
	rejection *admission.Result
	// waiting is why each container could not be started last, by its name.
	waiting map[string]status.Waiting
	// shown is the state that was reported last.
	shown *pod.State
	// restarting are the containers, by ID, that the sync stops to start them again.
	restarting map[string]bool
	// owed are those that were stopped for a resize and have not started again, whatever has become of that sync.
	owed map[string]bool
}

func newReporter(uid types.UID, deps *Deps, i *inbox, s *standing, r *remains) *reporter {
	return &reporter{
		uid: uid, deps: deps, inbox: i, standing: s, remains: r,
		waiting: map[string]status.Waiting{}, owed: map[string]bool{},
	}
}

// report sends the pod's status to the API server and the bus, and returns whether the pod is ready.
func (r *reporter) report(p *v1.Pod, state *pod.State) (ready bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.reportNewest(p, state, false)
}

// reportNewest reports the state, or a newer one that was reported already. A report beside a sync does not end the
// pod, which only the sync does. The caller holds mu.
func (r *reporter) reportNewest(p *v1.Pod, state *pod.State, beside bool) (ready bool) {
	if r.shown != nil && r.shown.Read.After(state.Read) {
		state = r.shown
	}
	r.shown = state
	state = r.unlessRestarting(p, state)
	s := r.status(p, state)
	if last, ok := r.deps.Statuses.Last(r.uid); beside && ok && podutil.IsTerminal(s.Phase) {
		s.Phase, s.Reason, s.Message = last.Phase, last.Reason, last.Message
	}
	if podutil.IsTerminal(s.Phase) && !state.AnyRunning() {
		// The scheduler reuses the resources as soon as it sees this status, so they are released first.
		r.deps.Admission.Ended(r.uid)
		r.deps.Allocation.Ended(r.uid)
	}
	r.deps.Statuses.Set(p, s)
	r.deps.Reporter.Status(r.uid, state, &s)
	r.standing.noteReported()
	return slices.ContainsFunc(s.Conditions, func(c v1.PodCondition) bool {
		return c.Type == v1.PodReady && c.Status == v1.ConditionTrue
	})
}

// reportBeside reports what has happened to the pod while a sync lasts: probe results, and containers that end. A sync
// lasts while a container is stopped, an image pulled, a volume mounted or a hook run.
func (r *reporter) reportBeside(ctx context.Context) {
	if !r.reportIf(nil) {
		return
	}
	state, err := r.deps.Runtime.State(ctx, r.uid)
	if err != nil {
		r.notice(transientRetry)
		return
	}
	r.reportIf(r.remains.counting(state))
}

// notice has what happened to the pod reported after this time, unless the worker has read the runtime by then.
func (r *reporter) notice(after time.Duration) { r.notices.due(after) }

// looks notes that the worker is about to read the runtime.
func (r *reporter) looks() { r.notices.clear() }

// reportIf reports the state, if it is not nil, of a pod of which the worker has reported one before and of which
// something may run. It returns whether the pod is one.
func (r *reporter) reportIf(state *pod.State) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	p, removed := r.inbox.inSync()
	reported, _ := r.standing.hasReported()
	is := reported && !removed && r.phase < terminated
	if is && state != nil {
		r.reportNewest(p, state, true)
	}
	return is
}

// unlessRestarting returns the state with those containers as running that the worker has stopped to start them again
// at once, although their policy would not: the API takes such an end as final. The caller holds mu.
func (r *reporter) unlessRestarting(p *v1.Pod, state *pod.State) *pod.State {
	stopped := maps.Clone(r.restarting)
	if r.phase == syncing && len(r.owed) > 0 {
		stopped = maps.Clone(r.owed)
		maps.Copy(stopped, r.restarting)
	}
	if len(stopped) == 0 {
		return state
	}
	kept := *state
	kept.Containers = slices.Clone(state.Containers)
	for i := range kept.Containers {
		c := &kept.Containers[i]
		spec := podutil.Container(&p.Spec, c.Name)
		if stopped[c.ID] && spec != nil && !decide.MayRun(c) && !decide.ShouldRestart(p, spec, c.ExitCode) {
			c.State = runtimeapi.ContainerState_CONTAINER_RUNNING
		}
	}
	return &kept
}

// noteRestarting notes which containers a decision stops to start them again.
func (r *reporter) noteRestarting(a *decide.Actions) {
	restarting, owed := map[string]bool{}, map[string]bool{}
	for i := range a.Kill {
		restarting[a.Kill[i].ID] = a.Kill[i].Restart
		if a.Kill[i].Reason == decide.KillResize {
			owed[a.Kill[i].ID] = true
		}
	}
	if a.StopPod != nil && a.Sandbox != nil {
		for i := range a.StopPod.Containers {
			restarting[a.StopPod.Containers[i].ID] = true
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.restarting = restarting
	maps.Copy(r.owed, owed)
}

// owes returns the containers, by ID, that were stopped for a resize and have not started again.
func (r *reporter) owes() map[string]bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return maps.Clone(r.owed)
}

// waits notes why a container could not be started last.
func (r *reporter) waits(name, reason, message string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.waiting[name] = status.Waiting{Reason: reason, Message: message}
}

// runs notes that a container has no reason to wait any more.
func (r *reporter) runs(name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.waiting, name)
}

// why returns why a container could not be started last.
func (r *reporter) why(name string) status.Waiting {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.waiting[name]
}

// see drops the reasons to wait of containers that run: the runtime may have started one although the call failed.
func (r *reporter) see(state *pod.State) {
	r.mu.Lock()
	defer r.mu.Unlock()
	maps.DeleteFunc(r.waiting, func(name string, why status.Waiting) bool {
		c := state.Latest(name)
		return c != nil && c.Running() && why.Reason != reasonPostStartHookError
	})
	maps.DeleteFunc(r.owed, func(id string, _ bool) bool {
		return !slices.ContainsFunc(state.Containers, func(c pod.Container) bool {
			return c.ID == id && state.Latest(c.Name).ID == id
		})
	})
}

// reject notes why the pod may not run here.
func (r *reporter) reject(why *admission.Result) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.rejection = why
}

func (r *reporter) isRejected() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.rejection != nil
}

// move moves the pod on. A report that is being made is one of the phase before.
func (r *reporter) move(on cause) (before, now phase) {
	r.mu.Lock()
	defer r.mu.Unlock()
	before = r.phase
	r.phase = next(before, on)
	return before, r.phase
}

func (r *reporter) inPhase() phase {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.phase
}

// terminated reports the last status of a pod that is being deleted.
func (r *reporter) terminated(p *v1.Pod, state *pod.State) {
	r.mu.Lock()
	s := r.status(p, state)
	r.mu.Unlock()
	r.deps.Statuses.Terminated(p, s)
}

// status makes the pod's status. The caller holds mu.
func (r *reporter) status(p *v1.Pod, state *pod.State) v1.PodStatus {
	in := status.Inputs{
		Now:         time.Now(),
		StopSignals: slices.Contains(r.deps.Gated, fields.StopSignal),
		Terminal:    r.phase >= terminated,
		Waiting:     maps.Clone(r.waiting),
		HostIPs:     r.deps.HostIPs.Known(),

		RecursiveReadOnly:   r.deps.RuntimeState.RecursiveReadOnly(p),
		WithoutPodResources: r.deps.WithoutPodResources,
		Resize:              r.deps.Allocation.Conditions(r.uid),
	}
	if has, known := r.deps.Allocation.Actuated(r.uid); known {
		in.Actuated = &has
	}
	if r.deps.WithoutDeviceHealth {
		in.Devices = map[string][]v1.ResourceStatus{}
	} else if devices, known := r.deps.Grants.Statuses(r.uid); known {
		in.Devices = devices
	}
	results := r.deps.probeResults(p)
	in.Readiness, in.Startup = results.Readiness, results.Startup
	if e := r.inbox.currentEviction(); e != nil {
		in.Override = &e.override
	}
	if last, ok := r.deps.Statuses.Last(r.uid); ok {
		in.Old = &last
	}
	switch {
	case r.rejection != nil:
		return status.Rejected(p, r.rejection.Reason, r.rejection.Message, in)
	case podutil.IsTerminal(p.Status.Phase) && neverRan(p) && len(state.Containers) == 0:
		return *p.Status.DeepCopy() // an earlier podsync, or a kubelet, rejected it
	}
	s := status.Generate(p, state, in)
	if message := status.FamilyMismatch(p, in, &s); message != "" {
		r.deps.event(p, v1.EventTypeWarning, "HostIPsIPFamilyMismatch", "%s", message)
	}
	if r.phase >= terminated {
		s = status.Terminate(p, s, in.Now)
	}
	return s
}
