package decide

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/microlet/microlet/services/internal/podutil"
	"github.com/microlet/microlet/services/podsync/internal/pod"
)

// Decide returns what is to be done for a pod.
func Decide(in Input) Actions {
	if in.Pod == nil || in.State == nil {
		return Actions{}
	}
	if ending(in) {
		return stopFor(in, StopTerminating, "the pod is terminating")
	}
	if RestartingAll(in.Pod, in.State, in.reported()) {
		if !AllRemoved(in.Pod, in.State) {
			return resetAll(in)
		}
		in.allAgain = true
	}
	if changed, attempt, message := SandboxChanged(in.Pod, in.State); changed {
		return replaceSandbox(in, attempt, message)
	}
	return keepRunning(in)
}

func ending(in Input) bool {
	return in.Terminating || in.Pod.DeletionTimestamp != nil || podutil.IsTerminal(in.Pod.Status.Phase)
}

// round collects the actions of one decision.
type round struct {
	in      Input
	actions Actions
}

// stopFor stops what is left of a pod that will start nothing more.
func stopFor(in Input, reason StopReason, message string) Actions {
	stop := stopPod(in, reason, message)
	for i := range in.State.Sandboxes {
		if s := &in.State.Sandboxes[i]; !s.Ready && !in.Stopped[s.ID] {
			stop.Sandboxes = append(stop.Sandboxes, s.ID)
		}
	}
	if len(stop.Containers) == 0 && len(stop.Sandboxes) == 0 {
		return Actions{Finished: true}
	}
	return Actions{StopPod: &stop}
}

func stopPod(in Input, reason StopReason, message string) StopPod {
	stop := StopPod{Reason: reason, Message: message}
	for i := range in.State.Containers {
		c := &in.State.Containers[i]
		if !MayRun(c) {
			continue
		}
		kill := newKill(in, c, "", "")
		kill.Stage = stopStage(in.Pod, c.Name)
		stop.Containers = append(stop.Containers, kill)
	}
	slices.SortStableFunc(stop.Containers, func(a, b Kill) int { return cmp.Compare(a.Stage, b.Stage) })
	for i := range in.State.Sandboxes {
		if in.State.Sandboxes[i].Ready {
			stop.Sandboxes = append(stop.Sandboxes, in.State.Sandboxes[i].ID)
		}
	}
	return stop
}

// stopStage lets sidecars end after the containers that they serve, the last one first.
func stopStage(p *v1.Pod, name string) int {
	stage := 0
	for i := len(p.Spec.InitContainers) - 1; i >= 0; i-- {
		if !podutil.IsSidecar(&p.Spec.InitContainers[i]) {
			continue
		}
		stage++
		if p.Spec.InitContainers[i].Name == name {
			return stage
		}
	}
	return 0
}

// replaceSandbox gives the pod a new sandbox, with all of its containers, unless the pod
// is not to start again.
func replaceSandbox(in Input, attempt uint32, message string) Actions {
	p, st := in.Pod, in.State
	r := &round{in: in}

	stop := stopPod(in, StopSandboxChanged, message)
	if len(st.Sandboxes) > 0 && !st.Sandboxes[0].Ready {
		stop.Sandboxes = append(stop.Sandboxes, st.Sandboxes[0].ID)
	}

	var wanted []int
	ran, remains := AnyCreated(p, st), len(st.Containers) != 0
	for i := range p.Spec.Containers {
		spec := &p.Spec.Containers[i]
		newest := st.Latest(spec.Name)
		switch {
		case in.doneForGood(spec, newest):
		case newest == nil && !in.wantsStart(spec, nil):
			ran, remains = true, true // its remains were removed
		default:
			wanted = append(wanted, i)
		}
	}
	// A pod that runs once and has run is not run again because its sandbox died. One that never
	// got as far as a container is: what failed then was the sandbox itself.
	ranOnce := p.Spec.RestartPolicy == v1.RestartPolicyNever && attempt != 0 && remains
	if ranOnce || (len(wanted) == 0 && ran) {
		return stopFor(in, StopCompleted, message)
	}

	if len(stop.Containers) != 0 || len(stop.Sandboxes) != 0 {
		r.actions.StopPod = &stop
	}
	r.actions.Sandbox = &Sandbox{Attempt: attempt, Message: message}
	if len(st.Sandboxes) > 0 {
		r.actions.Sandbox.Replaces = st.Sandboxes[0].ID
	}
	if len(p.Spec.InitContainers) > 0 {
		for i := range st.Containers {
			if podutil.IsInit(&p.Spec, st.Containers[i].Name) {
				r.actions.Remove = append(r.actions.Remove, st.Containers[i].ID)
			}
		}
		r.start(&p.Spec.InitContainers[0], 0, true)
	} else {
		for _, i := range wanted {
			r.start(&p.Spec.Containers[i], i, false)
		}
	}
	r.resize()
	r.removeSuperseded()
	return r.actions
}

// doneForGood reports whether a container need not be in the next sandbox: it has ended, and not in
// a way that lets it run again. To take it along would give the pod a sandbox that nothing is in,
// which is stopped at once, and again and again.
func (in *Input) doneForGood(c *v1.Container, newest *pod.Container) bool {
	return exited(newest) && !in.wantsStart(c, newest)
}

// keepRunning keeps a pod in its sandbox as it should be.
func keepRunning(in Input) Actions {
	p, st := in.Pod, in.State
	r := &round{in: in}
	r.actions.SandboxID = st.Sandboxes[0].ID

	r.stopDoubles()
	r.ephemeralContainers()
	switch r.initContainers() {
	case initFailed:
		return stopFor(in, StopInitFailed, "an init container failed and is not to be restarted")
	case initPending:
		r.resize()
		r.removeSuperseded()
		return r.actions
	case initDone:
	}

	kept := 0
	for i := range p.Spec.Containers {
		spec := &p.Spec.Containers[i]
		newest := st.Latest(spec.Name)
		if newest != nil && newest.Running() {
			r.keepOrKill(spec, i, newest)
			kept++ // also what is to be stopped: whether the pod has ended is seen afterwards
			continue
		}
		if !in.wantsStart(spec, newest) {
			continue
		}
		kept++
		r.killUnknown(newest, "Container")
		r.start(spec, i, false)
	}
	if kept == 0 {
		// Sidecars must not keep a pod alive that has done its work.
		return stopFor(in, StopCompleted, "no container runs or is to be started again")
	}
	r.resize()
	r.removeSuperseded()
	return r.actions
}

// stopDoubles stops instances that run beside a newer one of their container, so that there are never two of it: the
// runtime has started them after their start was given up.
func (r *round) stopDoubles() {
	for i := range r.in.State.Containers {
		c := &r.in.State.Containers[i]
		newest := r.in.State.Latest(c.Name)
		if podutil.IsInit(&r.in.Pod.Spec, c.Name) {
			newest = r.active(c.Name)
		}
		if c.Running() && c != newest {
			r.actions.Kill = append(r.actions.Kill, newKill(r.in, c, "", ""))
		}
	}
}

// keepOrKill looks for a reason to stop a container that runs.
func (r *round) keepOrKill(spec *v1.Container, index int, c *pod.Container) {
	var reason KillReason
	var message string
	restart := restartsAfterKill(r.in.Pod, spec)
	switch {
	case r.changed(spec, c):
		message = fmt.Sprintf("Container %s definition changed", spec.Name)
		restart = true
	case r.in.Liveness[c.ID] == Failure:
		reason = KillLivenessProbe
		message = fmt.Sprintf("Container %s failed liveness probe", spec.Name)
	case r.in.Startup[c.ID] == Failure:
		reason = KillStartupProbe
		message = fmt.Sprintf("Container %s failed startup probe", spec.Name)
	case r.resizeRestarts(spec, c):
		r.restart(spec, index, false, c, KillResize, resizeMessage(spec.Name))
		return
	default:
		return
	}
	if restart {
		message += ", will be restarted"
	}
	kill := newKill(r.in, c, reason, message)
	kill.Restart = restart
	r.actions.Kill = append(r.actions.Kill, kill)
	if restart {
		r.start(spec, index, false)
	}
}

// killUnknown stops a container in a state that the runtime does not know, so that it never runs twice.
func (r *round) killUnknown(c *pod.Container, kind string) {
	if c == nil || c.State != runtimeapi.ContainerState_CONTAINER_UNKNOWN {
		return
	}
	kill := newKill(r.in, c, KillUnknown, kind+` is in "unknown" state, try killing it before restart`)
	kill.Restart = true
	r.actions.Kill = append(r.actions.Kill, kill)
}

// start lets a container start, or wait for the end of its backoff.
func (r *round) start(spec *v1.Container, index int, init bool) {
	st := r.in.State
	newest := st.Latest(spec.Name)
	s := Start{
		Name:         spec.Name,
		Spec:         spec,
		Index:        index,
		Init:         init,
		Ephemeral:    podutil.IsEphemeral(&r.in.Pod.Spec, spec.Name),
		RestartCount: r.restartCount(spec.Name, newest),
	}
	s.Changed = newest != nil && r.changed(spec, newest)
	if last := latestExited(st, spec.Name); last != nil {
		s.Previous = last.Finished
		until, wake, delay, waits := r.in.Backoff.wait(spec.Name, last.Finished, r.in.Now)
		if waits && !s.Changed {
			r.actions.Wait = append(r.actions.Wait, Wait{
				Name: spec.Name, Until: until, Delay: delay, Message: backoffMessage(r.in.Pod, spec.Name, delay),
			})
			r.wakeAt(wake)
			return
		}
	}
	if newest != nil && newest.State == runtimeapi.ContainerState_CONTAINER_CREATED {
		r.remove(newest.ID)
	}
	r.actions.Start = append(r.actions.Start, s)
}

func (r *round) changed(spec *v1.Container, c *pod.Container) bool {
	return r.in.Hash != nil && r.in.Hash(spec) != c.Hash
}

// restartCount of the next instance: one more than the newest has, and never less than the API has already. If both
// know none, the logs say where to begin. An instance that is still to be removed keeps its count.
func (r *round) restartCount(name string, newest *pod.Container) int32 {
	var next int32
	if newest != nil {
		next = newest.RestartCount + 1
	}
	for _, list := range [][]v1.ContainerStatus{r.in.reported().ContainerStatuses, r.in.reported().InitContainerStatuses} {
		for i := range list {
			if list[i].Name != name {
				continue
			}
			reported := list[i].RestartCount
			if newest == nil && list[i].ContainerID != "" {
				reported++ // the runtime has forgotten an instance that the API knows
			}
			next = max(next, reported)
		}
	}
	if next == 0 {
		next = r.in.Logged[name]
	}
	if unremoved, ok := r.in.Unremoved[name]; ok {
		next = max(next, unremoved+1)
	}
	return next
}

func (r *round) wakeAt(t time.Time) {
	if r.actions.Wake.IsZero() || t.Before(r.actions.Wake) {
		r.actions.Wake = t
	}
}

func (r *round) remove(id string) {
	if !slices.Contains(r.actions.Remove, id) {
		r.actions.Remove = append(r.actions.Remove, id)
	}
}

// maxReplaced is how many replaced sandboxes stay for the containers that have ended in them. The runtime has the
// labels and annotations of a pod once for each of its sandboxes.
const maxReplaced = 8

// removeSuperseded leaves the newest dead instances of each container, for the last state
// and the logs, and gives up the older ones. One that was created only is none of them.
func (r *round) removeSuperseded() {
	kept := map[string]int{}
	for i := range r.in.State.Containers {
		c := &r.in.State.Containers[i]
		switch {
		case MayRun(c) || slices.Contains(r.actions.Remove, c.ID):
		case r.isHistory(c):
			r.actions.Remove = append(r.actions.Remove, c.ID)
		case !exited(c) && c == r.in.State.Latest(c.Name):
		case exited(c) && kept[c.Name] < max(r.in.KeepDead, 1):
			kept[c.Name]++
		default:
			r.actions.Remove = append(r.actions.Remove, c.ID)
		}
	}
}

// isHistory reports whether a container has ended for good, as was reported, in a sandbox that many others have
// replaced.
func (r *round) isHistory(c *pod.Container) bool {
	at := slices.IndexFunc(r.in.State.Sandboxes, func(s pod.Sandbox) bool { return s.ID == c.SandboxID })
	if at <= maxReplaced {
		return false
	}
	spec, end := podutil.Container(&r.in.Pod.Spec, c.Name), reportedEnd(r.in.reported(), c.Name)
	return spec != nil && end != nil && strings.HasSuffix(end.ContainerID, "://"+c.ID) &&
		!ShouldRestart(r.in.Pod, spec, end.ExitCode)
}

func latestExited(st *pod.State, name string) *pod.Container {
	for i := range st.Containers {
		if st.Containers[i].Name == name && exited(&st.Containers[i]) {
			return &st.Containers[i]
		}
	}
	return nil
}

// AnyCreated reports whether a regular container of the pod has been created, as far as the runtime knows.
func AnyCreated(p *v1.Pod, st *pod.State) bool {
	return slices.ContainsFunc(p.Spec.Containers, func(c v1.Container) bool {
		newest := st.Latest(c.Name)
		return newest != nil && newest.State != runtimeapi.ContainerState_CONTAINER_UNKNOWN
	})
}
