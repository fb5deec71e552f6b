package worker

import (
	"context"

	v1 "k8s.io/api/core/v1"

	"github.com/microlet/microlet/services/internal/logkey"
	"github.com/microlet/microlet/services/podsync/internal/pod"
)

// backgroundTask runs beside the worker's syncs and waits for none of them.
type backgroundTask struct {
	cancel context.CancelFunc
	done   chan struct{}
}

// begin starts a background task, which ends by itself, with end, or with podsync.
func (w *worker) begin(do func(ctx context.Context)) *backgroundTask {
	ctx, cancel := context.WithCancel(w.life)
	d := &backgroundTask{cancel: cancel, done: make(chan struct{})}
	w.goroutines.Go(func() {
		defer close(d.done)
		defer cancel()
		do(ctx)
	})
	return d
}

// end ends a background task and waits for it; nil has ended.
func (d *backgroundTask) end() {
	if d != nil {
		d.cancel()
		<-d.done
	}
}

func (d *backgroundTask) ended() bool {
	if d == nil {
		return true
	}
	select {
	case <-d.done:
		return true
	default:
		return false
	}
}

// beginBackground starts what is due whatever the sync comes to: a container that cannot be started must not keep the
// others' volumes from being refreshed, nor sandboxes from being removed that nobody needs.
func (w *worker) beginBackground(p *v1.Pod, state *pod.State) {
	if state.AnyRunning() {
		w.keepFresh(p)
	}
	w.sweep(p, state)
}

// cancelDuties has them end, as nothing of the pod is to run any more. It waits for none of them.
func (w *worker) cancelDuties() {
	for _, d := range []*backgroundTask{w.refreshing, w.sweeping} {
		if d != nil {
			d.cancel()
		}
	}
}

// endDuties waits for their ends, too.
func (w *worker) endDuties() {
	w.refreshing.end()
	w.sweeping.end()
	w.refreshing, w.sweeping = nil, nil
}

// sweep removes sandboxes that were replaced and hold no container any more. A later sync tries again what fails.
func (w *worker) sweep(p *v1.Pod, state *pod.State) {
	if !w.sweeping.ended() {
		return
	}
	var replaced []string
	for i := range state.Sandboxes {
		if s := &state.Sandboxes[i]; i > 0 && !s.Ready && !holdsContainer(state, s.ID) {
			replaced = append(replaced, s.ID)
		}
	}
	if len(replaced) == 0 {
		return
	}
	w.sweeping = w.begin(func(ctx context.Context) {
		for _, id := range replaced {
			if err := w.deps.Runtime.RemoveSandbox(ctx, id); err != nil && ctx.Err() == nil &&
				w.history.sweepFails(err) {
				w.deps.Log.Warn("replaced sandbox not removed", logkey.Pod, podName(p), logkey.PodUID, w.uid,
					"sandbox", id,
					logkey.Err, err)
			}
		}
	})
}
