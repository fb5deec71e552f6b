package pods

import (
	"context"

	v1 "k8s.io/api/core/v1"

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
