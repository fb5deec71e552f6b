package pods

import (
	"context"
	"maps"
	"slices"

	v1 "k8s.io/api/core/v1"

	"github.com/microlet/microlet/services/podsync/internal/pod"
	"github.com/microlet/microlet/services/podsync/internal/pod/decide"
	"github.com/microlet/microlet/services/podsync/internal/pod/status"
	"github.com/microlet/microlet/services/podsync/internal/pods/internal/hook"
)

// see remembers of a state what stops, hooks and the status need of it.
func (w *worker) see(state *pod.State) {
	if sandbox := state.ReadySandbox(); sandbox != nil {
		w.ips = status.SortIPs(sandbox.IPs, primary(w.deps.HostIPs.Assumed()))
	}
	for name, why := range w.history.waiting {
		if c := state.Latest(name); c != nil && c.Running() && why.Reason != reasonPostStartHookError {
			w.runs(name) // the runtime has started it although the call failed
		}
	}
	for id, stop := range w.stops {
		if !mayRun(state, id) {
			stop.end()
			delete(w.stops, id)
		}
	}
	maps.DeleteFunc(w.stoppedSandboxes, func(id string, _ bool) bool {
		return !slices.ContainsFunc(state.Sandboxes, func(s pod.Sandbox) bool { return s.ID == id })
	})
}

func mayRun(state *pod.State, id string) bool {
	for i := range state.Containers {
		if c := &state.Containers[i]; c.ID == id {
			return decide.MayRun(c)
		}
	}
	return false
}

func (w *worker) hookInput(p *v1.Pod, c *v1.Container, id string) hook.Input {
	ips := w.ips
	if p.Spec.HostNetwork {
		ips = w.deps.HostIPs.Assumed()
	}
	return hook.Input{Pod: p, Container: c, ContainerID: id, PodIP: primary(ips)}
}

// postStart runs a container's hook and returns when it has. Containers that start after
// this one wait for it, as with the kubelet; the end of the pod does not. A container whose
// hook fails is stopped, and its restart policy says what follows.
func (w *worker) postStart(ctx context.Context, p *v1.Pod, c *v1.Container, id string) error {
	if c.Lifecycle == nil || c.Lifecycle.PostStart == nil {
		return nil
	}
	err := w.deps.Hooks.Run(ctx, w.hookInput(p, c, id), c.Lifecycle.PostStart)
	if err == nil {
		return nil
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	// Not the error itself: what a server answered may hold secrets.
	w.deps.containerEvent(p, c.Name, v1.EventTypeWarning, reasonFailedPostStartHook, "PostStartHook failed")
	w.waits(c.Name, reasonPostStartHookError, err.Error())
	if failed := w.kill(ctx, p, []decide.Kill{decide.NewKill(p, c, id, reasonFailedPostStartHook)}); failed != nil {
		return failed
	}
	return reportedSoon("postStart hook of container "+c.Name, err)
}
