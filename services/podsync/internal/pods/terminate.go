package pods

import (
	"context"
	"errors"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/microlet/microlet/services/internal/logkey"
	podlogs "github.com/microlet/microlet/services/podsync/internal/logs"
	"github.com/microlet/microlet/services/podsync/internal/pod/decide"
)

// stop stops every container of the pod within the grace period, and then the sandboxes.
func (w *worker) stop(ctx context.Context, p *v1.Pod, removed bool) error {
	w.mounts.refreshing.cancel()
	w.sweeping.cancelIfAny()
	// A container that is just being started must not lose its sandbox: its end would be reported as
	// a failure to start.
	if err := w.settle(ctx); err != nil {
		return err
	}
	state, err := w.readState(ctx)
	if err != nil {
		return err
	}
	if !removed {
		w.reporter.report(p, state)
	}
	stopped := false
	for range iterations {
		actions := decide.Decide(decide.Input{
			Pod:           p,
			State:         state,
			Now:           time.Now(),
			Terminating:   true,
			GraceOverride: w.inbox.graceSeconds(p),
			Stopped:       w.stops.sandboxes,
		})
		if stopped = actions.StopPod == nil; stopped {
			break
		}
		if err := w.stopPod(ctx, p, actions.StopPod); err != nil {
			if ctx.Err() == nil { // else it goes on in the next sync, or with the next podsync
				w.deps.event(p, v1.EventTypeWarning, reasonFailedKillPod, "error killing pod: %v", err)
			}
			return err
		}
		if state, err = w.readState(ctx); err != nil {
			return err
		}
	}
	if !stopped {
		return transient("stop the pod", errors.New("containers or sandboxes still run"))
	}
	w.move(causeStopped)
	w.last = state
	if !removed {
		w.reporter.report(p, state)
	}
	return nil
}

// release gives back what the pod held on the node, and reports its last status.
func (w *worker) release(ctx context.Context, p *v1.Pod) error {
	w.mounts.refreshing.end()
	w.sweeping.end()
	w.sweeping = nil
	if err := w.deps.Volumes.Unmount(ctx, w.uid); err != nil {
		return transient("unmount volumes", err)
	}
	if err := w.deps.Cgroups.RemovePod(ctx, w.uid); err != nil {
		return transient("remove the pod's cgroup", err)
	}
	w.deps.Objects.Unregister(w.uid) // a pod that has ended may stay for days, and needs no watch
	w.move(causeReleased)
	return nil
}

// awaitRemoval waits for the end of the pod's object. The object of a pod that is being deleted may go now. A pod that
// ended by itself stays until it is deleted.
func (w *worker) awaitRemoval(p *v1.Pod) (time.Duration, bool, error) {
	if p.DeletionTimestamp == nil {
		return jitter(w.deps.Resync), false, nil
	}
	// What was read when all had stopped does not change any more, and the runtime has enough to do.
	w.reporter.terminated(p, w.last)
	return jitter(w.deps.Resync), false, nil
}

// removeRemains removes what is left in the runtime and on disk of a pod whose object is gone. A failure of one part
// does not stop the others.
func (w *worker) removeRemains(ctx context.Context, p *v1.Pod) error {
	state, err := w.deps.Runtime.State(ctx, w.uid) // with the containers that count no more
	if err != nil {
		return transient("read the pod's state", err)
	}
	removed := w.counted(ctx, "pod", w.deps.Remover.Remove(ctx, state))
	logs := w.counted(ctx, "log", w.deps.Logs.Remove(podlogs.Pod{Namespace: p.Namespace, Name: p.Name, UID: w.uid}))
	if err := errors.Join(removed, logs); err != nil {
		return transient("remove what is left of the pod", err)
	}
	w.move(causeCleanedUp)
	w.deps.Log.Info("pod is gone", logkey.Pod, podName(p), logkey.PodUID, w.uid)
	return nil
}
