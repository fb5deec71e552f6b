package pods

import (
	"context"

	v1 "k8s.io/api/core/v1"

	"github.com/microlet/microlet/services/podsync/internal/pod"
	"github.com/microlet/microlet/services/podsync/internal/pod/decide"
	"github.com/microlet/microlet/services/podsync/internal/pod/status"
	"github.com/microlet/microlet/services/podsync/internal/pods/internal/hook"
)

// see keeps of a state what stops, hooks and the status need.
func (w *worker) see(state *pod.State) {
	if sandbox := state.ReadySandbox(); sandbox != nil {
		w.ips = status.SortIPs(sandbox.IPs, primary(w.deps.HostIPs.Assumed()))
	}
	w.reporter.see(state)
	w.stops.see(state)
}

func (w *worker) hookInput(p *v1.Pod, c *v1.Container, id string) hook.Input {
	ips := w.ips
	if p.Spec.HostNetwork {
		ips = w.deps.HostIPs.Assumed()
	}
	return hook.Input{Pod: p, Container: c, ContainerID: id, PodIP: primary(ips)}
}

// postStart runs a container's hook and returns when the hook has ended. Containers that start after this one wait for
// it, as under the kubelet. The end of the pod does not. A container whose hook fails is stopped, and its restart
// policy decides what follows.
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
	w.reporter.waits(c.Name, reasonPostStartHookError, err.Error())
	if failed := w.kill(ctx, p, []decide.Kill{decide.NewKill(p, c, id, reasonFailedPostStartHook)}); failed != nil {
		return failed
	}
	return reportedSoon("postStart hook of container "+c.Name, err)
}
