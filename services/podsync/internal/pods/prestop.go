package pods

import (
	"context"
	"errors"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/microlet/microlet/services/internal/logkey"
	"github.com/microlet/microlet/services/internal/tracing"
	"github.com/microlet/microlet/services/podsync/internal/pod/decide"
)

// hookOverrun is how much longer than its grace period a preStop hook may run. The hook ends with its container, which
// has minGrace then and for which the runtime waits.
const hookOverrun = minGrace + 10*time.Second

// beginPreStop runs a container's hook beside the worker. A sync that is canceled leaves the hook to the next one. The
// end of the grace period does not end the hook, as under the kubelet: the container is asked to stop then and has
// minGrace left, in which its hook may still do something for it. A hook that fails is reported and changes nothing.
func (w *worker) beginPreStop(ctx context.Context, p *v1.Pod, k *decide.Kill) *task {
	in := w.hookInput(p, k.Spec, k.ID)
	return w.tasks.begin(tracing.Outside(ctx), func(ctx context.Context) {
		bounded, cancel := context.WithTimeout(ctx, k.Grace+hookOverrun)
		defer cancel()
		err := w.deps.Hooks.Run(bounded, in, k.Spec.Lifecycle.PreStop)
		if err == nil || errors.Is(context.Cause(ctx), errWorkerEnds) {
			return // podsync ends: the next one runs the hook again
		}
		// Not the error itself: what a server answered may hold secrets.
		w.deps.containerEvent(p, k.Name, v1.EventTypeWarning, reasonFailedPreStopHook, "PreStopHook failed")
		w.deps.Log.Warn("preStop hook failed", logkey.Pod, podName(p), logkey.PodUID, w.uid, logkey.Container, k.Name,
			logkey.Err, err)
	}, nil)
}
