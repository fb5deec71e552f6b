package pods

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/microlet/microlet/services/internal/logkey"
	"github.com/microlet/microlet/services/internal/podutil"
	"github.com/microlet/microlet/services/podsync/internal/cri/runtime"
	"github.com/microlet/microlet/services/podsync/internal/pod"
	"github.com/microlet/microlet/services/podsync/internal/pod/decide"
)

// resizing returns what the pod has, or nil if what was granted to it is known to be in force. While a resize is in
// progress nothing is known: one that was taken back may be carried out in part, and a container that has started again
// has what the pod's cgroup may lack. The cgroup is read then, and unless it is recorded that the pod was given all.
func (w *worker) resizing(p *v1.Pod, state *pod.State) (*decide.Resizing, error) {
	inProgress := w.resizeInProgress()
	if !inProgress && w.inForce != nil && w.inForce.Equal(pod.ResourcesOf(p)) {
		return nil, nil
	}
	recorded, known := w.deps.Allocation.Actuated(w.uid)
	has := pod.Resources{Containers: map[string]v1.ResourceRequirements{}, Pod: recorded.Pod}
	var running []string
	for c := range podutil.Containers(&p.Spec) {
		r, isRecorded := recorded.Containers[c.Name]
		if newest := state.Latest(c.Name); newest != nil && newest.Running() {
			running = append(running, newest.ID)
			r, isRecorded = w.actuated(p, c, r, isRecorded, newest.Resources.GetLinux()), true
		}
		if isRecorded {
			has.Containers[c.Name] = r
		}
	}
	resizing := &decide.Resizing{Actuated: has}
	if !inProgress && known && decide.InForce(p, recorded) && decide.InForce(p, has) {
		return resizing, nil
	}
	var err error
	if resizing.Cgroup, err = w.deps.Cgroups.ReadPod(p, running); err != nil {
		return nil, err
	}
	return resizing, nil
}

// resizeInProgress reports whether a resize was granted that is not known to be complete, by an earlier podsync too.
func (w *worker) resizeInProgress() bool {
	return slices.ContainsFunc(w.deps.Allocation.Conditions(w.uid), func(c v1.PodCondition) bool {
		return c.Type == v1.PodResizeInProgress
	})
}

// noteResize notes what a decision says of the pod's resize: it waits for memory, or nothing is left to do.
func (w *worker) noteResize(p *v1.Pod, state *pod.State, a *decide.Actions) {
	switch {
	case a.ResizeRefused != "":
		w.noteRefused(p, a.ResizeRefused)
	case a.Resized:
		for c := range podutil.Containers(&p.Spec) {
			if newest := state.Latest(c.Name); newest != nil && newest.Running() {
				w.recordContainer(p, c.Name, c.Resources)
			}
		}
		w.deps.Allocation.SetActuatedPod(w.uid, p.Spec.Resources)
		w.inForce, w.refusal = new(pod.ResourcesOf(p)), refusal{}
		w.deps.Allocation.Completed(p)
	}
}

// refusalPeriod is how often a resize is reported that still waits for memory: what is used differs with each look.
const refusalPeriod = time.Minute

// refusal is the last report of a resize that waits for memory.
type refusal struct {
	of *pod.Resources
	at time.Time
}

// noteRefused reports that a resize waits.
func (w *worker) noteRefused(p *v1.Pod, why string) {
	granted := pod.ResourcesOf(p)
	if w.refusal.of != nil && w.refusal.of.Equal(granted) && time.Since(w.refusal.at) < refusalPeriod {
		return
	}
	w.refusal = refusal{&granted, time.Now()}
	w.deps.Allocation.Failed(p, errors.New(why))
}

// recordContainer records what a container is given, with the limits of the pod as a whole where it has none.
func (w *worker) recordContainer(p *v1.Pod, name string, r v1.ResourceRequirements) {
	w.deps.Allocation.SetActuatedContainer(w.uid, name, pod.Effective(p.Spec.Resources, r))
}

// resize carries out the steps of a resize. The first that fails ends it, as the later ones rely on it. What containers
// were given in a phase is recorded when the pod's cgroup has its share too: a crash before has the steps repeated.
// It is recorded too when a step fails, since other resources may be granted before the steps are repeated.
func (w *worker) resize(ctx context.Context, p *v1.Pod, a *decide.Actions) error {
	var given []*decide.ResizeStep
	record := func() {
		for _, s := range given {
			w.recordContainer(p, s.Name, s.Resources)
		}
		given = nil
	}
	for i := range a.Resize {
		s := &a.Resize[i]
		if err := w.resizeStep(ctx, p, a, s); err != nil {
			if ctx.Err() == nil {
				record()
			}
			return w.resizeFailed(ctx, p, err)
		}
		if !s.OfPod() {
			given = append(given, s)
		}
		if i+1 < len(a.Resize) && a.Resize[i+1].Phase == s.Phase {
			continue
		}
		record()
	}
	return nil
}

func (w *worker) resizeStep(ctx context.Context, p *v1.Pod, a *decide.Actions, s *decide.ResizeStep) error {
	if !s.OfPod() {
		return w.resizeContainer(ctx, p, s)
	}
	if a.Sandbox != nil { // nothing runs, and the next sandbox is created with what was granted
		return w.deps.Cgroups.SetPod(p, s.Before, s.After)
	}
	notify := func(l pod.CgroupLimits) error {
		resources, overhead := w.deps.Config.SandboxUpdate(p, l)
		return w.deps.Runtime.UpdateSandbox(ctx, a.SandboxID, resources, overhead)
	}
	if err := notify(s.After); err != nil {
		return fmt.Errorf("failed to notify runtime for UpdatePodSandboxResources (resource=%s); resize rejected: %w",
			s.Resource, err)
	}
	err := w.deps.Cgroups.SetPod(p, s.Before, s.After)
	if err == nil {
		return nil
	}
	if back := notify(s.Before); back != nil {
		w.deps.Log.Warn("runtime does not know that a pod's resources stay", logkey.Pod, podName(p), logkey.PodUID, w.uid,
			logkey.Err, back)
	}
	return err
}

func (w *worker) resizeContainer(ctx context.Context, p *v1.Pod, s *decide.ResizeStep) error {
	c := *podutil.Container(&p.Spec, s.Name)
	c.Resources = s.Resources
	err := w.deps.Runtime.UpdateContainer(ctx, w.uid, s.ID, w.deps.Config.ContainerUpdate(p, &c))
	if err == nil || runtime.IsNotFound(err) || ctx.Err() != nil {
		return err
	}
	// One that has ended meanwhile starts with what was granted.
	if state, unread := w.deps.Runtime.State(ctx, w.uid); unread == nil && !mayRun(state, s.ID) {
		return nil
	}
	return err
}

// resizeFailed returns why a resize failed, which the pod's condition shows. A runtime that is away refuses nothing.
func (w *worker) resizeFailed(ctx context.Context, p *v1.Pod, err error) error {
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case runtime.IsUnavailable(err):
		return transient("resize the pod", err)
	}
	w.deps.Allocation.Failed(p, err)
	return reported("resize the pod", err)
}

// resizes reports whether a decision carries out a resize.
func resizes(a *decide.Actions) bool {
	for i := range a.Kill {
		if a.Kill[i].Reason == decide.KillResize {
			return true
		}
	}
	return len(a.Resize) > 0
}

// onlyResizes reports whether a decision carries out steps of a resize and nothing else.
func onlyResizes(a *decide.Actions) bool {
	rest := *a
	rest.Resize = nil
	return len(a.Resize) > 0 && idle(&rest)
}

// isApart reports whether a resize can be noted as complete before the decision's starts, which may last: nothing was
// stopped that only this decision starts again.
func isApart(a *decide.Actions) bool {
	return len(a.Resize) > 0 && a.StopPod == nil && len(a.Kill) == 0
}

// unreadable is a decision about a pod whose cgroup cannot be read. It is resized when it can.
func unreadable(a *decide.Actions, err error) {
	a.ResizeRefused, a.Wake = err.Error(), sooner(a.Wake, time.Now().Add(decide.ResizeRetry))
}
