package worker

import (
	"context"
	"errors"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/microlet/microlet/services/podsync/internal/decide"
	"github.com/microlet/microlet/services/podsync/internal/podlogs"
)

// resync is how often a pod is looked at when nothing wakes its worker; up to half is added.
const resync = time.Minute

// stop stops every container of the pod within the grace period, and then the sandboxes.
func (w *worker) stop(ctx context.Context, p *v1.Pod, removed bool) error {
	state, err := w.readState(ctx)
	if err != nil {
		return err
	}
	if !removed {
		w.report(p, state)
	}
	actions := decide.Decide(decide.Input{Pod: p, State: state, Now: time.Now(), Terminating: true})
	if actions.StopPod != nil {
		if err := w.stopPod(ctx, p, actions.StopPod); err != nil {
			if ctx.Err() == nil { // else it goes on in the next look, or with the next podsync
				w.deps.event(p, v1.EventTypeWarning, reasonFailedKillPod, "error killing pod: %v", err)
			}
			return err
		}
		if state, err = w.readState(ctx); err != nil {
			return err
		}
		if state.AnyRunning() {
			return transient("stop the pod", errors.New("containers still run"))
		}
	}
	w.end()
	if !removed {
		w.report(p, state)
	}
	return nil
}

// stopPod stops containers, stage after stage, and then sandboxes.
func (w *worker) stopPod(ctx context.Context, p *v1.Pod, s *decide.StopPod) error {
	for rest := s.Containers; len(rest) > 0; {
		stage := rest
		for i := range rest {
			if rest[i].Stage != rest[0].Stage {
				stage = rest[:i]
				break
			}
		}
		rest = rest[len(stage):]
		if err := w.kill(ctx, p, stage); err != nil {
			return err
		}
	}
	for _, id := range s.Sandboxes {
		if err := w.deps.Runtime.StopSandbox(ctx, id); err != nil {
			return transient("stop the sandbox", err)
		}
	}
	return nil
}

// kill stops containers, all at once.
func (w *worker) kill(ctx context.Context, p *v1.Pod, kills []decide.Kill) error {
	errs := make([]error, len(kills))
	var all sync.WaitGroup
	for i := range kills {
		k := &kills[i]
		all.Go(func() {
			w.deps.containerEvent(p, k.Name, v1.EventTypeNormal, reasonKilling, "%s", k.Message)
			if err := w.deps.Runtime.StopContainer(ctx, k.ID, k.Grace); err != nil {
				errs[i] = transient("stop container "+k.Name, err)
			}
		})
	}
	all.Wait()
	return errors.Join(errs...)
}

// release gives back what the pod held on the node, and tells its last status.
func (w *worker) release(ctx context.Context, p *v1.Pod) error {
	w.endRefresh()
	if err := w.deps.Volumes.Unmount(ctx, w.uid); err != nil {
		return transient("unmount volumes", err)
	}
	if err := w.deps.Cgroups.RemovePod(ctx, w.uid); err != nil {
		return transient("remove the pod's cgroup", err)
	}
	return nil
}

// awaitRemoval waits for the end of the pod's object. A pod that is being deleted is
// deleted now; one that came to its end by itself stays until somebody deletes it.
func (w *worker) awaitRemoval(ctx context.Context, p *v1.Pod) (time.Duration, bool, error) {
	if p.DeletionTimestamp == nil {
		return jitter(resync), false, nil
	}
	state, err := w.readState(ctx)
	if err != nil {
		return 0, false, err
	}
	status := w.status(p, state)
	w.deps.Statuses.Terminated(p, status)
	return jitter(resync), false, nil
}

// vanish removes what is left in the runtime and on disk of a pod whose object is gone.
func (w *worker) vanish(ctx context.Context, p *v1.Pod) error {
	state, err := w.readState(ctx)
	if err != nil {
		return err
	}
	if err := w.deps.Remover.Remove(ctx, state); err != nil {
		return transient("remove the pod", err)
	}
	if err := w.deps.Logs.Remove(podlogs.Pod{Namespace: p.Namespace, Name: p.Name, UID: w.uid}); err != nil {
		return transient("remove the pod's logs", err)
	}
	w.deps.Objects.Unregister(w.uid)
	w.deps.Statuses.Forget(w.uid)
	w.deps.Publish.Forget(w.uid)
	w.deps.Log.Info("pod is gone", "pod", podName(p), "uid", w.uid)
	return nil
}
