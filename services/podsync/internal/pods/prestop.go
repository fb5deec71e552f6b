package pods

import (
	"context"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/microlet/microlet/services/internal/logkey"
	"github.com/microlet/microlet/services/podsync/internal/pod/decide"
)

// hookOverrun is how much longer than its grace period a preStop hook may run: it ends with its
// container, which has minGrace then and is waited for by the runtime.
const hookOverrun = minGrace + 10*time.Second

// preStop is a hook that was begun. a sync that is canceled leaves it to the next one.
type preStop struct {
	done   chan struct{} // closed when it has ended
	cancel context.CancelFunc
}

// beginPreStop runs a container's hook beside the worker. The end of the grace period does not
// end it, as with the kubelet: the container is asked to stop then, and has minGrace left, in
// which its hook may still do something for it. A hook that fails is reported and changes nothing.
func (w *worker) beginPreStop(p *v1.Pod, k *decide.Kill) *preStop {
	ctx, cancel := context.WithTimeout(w.life, k.Grace+hookOverrun)
	h := &preStop{done: make(chan struct{}), cancel: cancel}
	in := w.hookInput(p, k.Spec, k.ID)
	w.goroutines.Go(func() {
		defer close(h.done)
		defer cancel()
		err := w.deps.Hooks.Run(ctx, in, k.Spec.Lifecycle.PreStop)
		if err == nil || w.life.Err() != nil {
			return // podsync ends: the next one runs the hook again
		}
		// Not the error itself: what a server answered may hold secrets.
		w.deps.containerEvent(p, k.Name, v1.EventTypeWarning, reasonFailedPreStopHook, "PreStopHook failed")
		w.deps.Log.Warn("preStop hook failed", logkey.Pod, podName(p), logkey.PodUID, w.uid, logkey.Container, k.Name,
			logkey.Err, err)
	})
	return h
}

// end is for a container that has ended: its hook, if it still runs, has nobody left to serve.
func (s *stopping) end() {
	if s.hook != nil {
		s.hook.cancel()
	}
}
