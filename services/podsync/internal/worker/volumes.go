package worker

import (
	"context"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/microlet/microlet/services/podsync/internal/volume"
)

type mounted struct {
	volumes map[string]volume.Mounted
	err     error
}

// volumes mounts what the pod lacks, beside whatever else is going on. What is mounted is
// used as it is: a container that starts again does not wait for the apiserver.
//
// The objects that the volumes name must exist before this returns, and so before a
// sandbox starts, as with the kubelet: a pod that waits for one shows no sandbox.
func (w *worker) volumes(ctx context.Context, p *v1.Pod) (<-chan mounted, error) {
	result := make(chan mounted, 1)
	if existing, ok := w.deps.Volumes.Existing(p); ok {
		result <- mounted{volumes: existing}
		return result, nil
	}
	w.endRefresh()
	if err := w.deps.Volumes.Check(ctx, p); err != nil {
		return nil, w.notMounted(ctx, p, err)
	}
	w.history.refresh = time.Now().Add(volume.NextRefresh())
	w.beside.Go(func() {
		volumes, err := w.deps.Volumes.Mount(ctx, p)
		if err != nil {
			err = w.notMounted(ctx, p, err)
		}
		result <- mounted{volumes, err}
	})
	return result, nil
}

func (w *worker) notMounted(ctx context.Context, p *v1.Pod, err error) error {
	if ctx.Err() == nil {
		w.tellNotMounted(p, err)
	}
	return told("mount volumes", err)
}

// tellNotMounted sends an event for each volume that failed, as the kubelet does.
func (w *worker) tellNotMounted(p *v1.Pod, err error) {
	all := []error{err}
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		all = joined.Unwrap()
	}
	for _, one := range all {
		w.deps.event(p, v1.EventTypeWarning, reasonFailedMount, "%v", one)
	}
}

// refresh is a refresh of mounted volumes that is under way.
type refresh struct {
	cancel context.CancelFunc
	done   chan struct{}
}

// refresh brings what is mounted up to date when that is due: at once when what the volumes
// are made from has changed, and from time to time, as tokens expire and a change may have
// been missed. It goes on beside the worker, which an apiserver that is away must not hold up.
func (w *worker) refresh(p *v1.Pod) {
	if len(p.Spec.Volumes) == 0 || !w.stale.Swap(false) && time.Now().Before(w.history.refresh) {
		return
	}
	w.endRefresh()
	w.history.refresh = time.Now().Add(volume.NextRefresh())
	ctx, cancel := context.WithCancel(w.life)
	r := &refresh{cancel: cancel, done: make(chan struct{})}
	w.refreshing = r
	w.beside.Go(func() {
		defer close(r.done)
		defer cancel()
		if err := w.deps.Volumes.Refresh(ctx, p); err != nil && ctx.Err() == nil {
			w.tellNotMounted(p, err)
			w.deps.Log.Warn("volumes not refreshed, what is mounted stays", "pod", podName(p), "uid", w.uid, "err", err)
		}
	})
}

// endRefresh ends a refresh that is under way, before anything else touches the volumes.
func (w *worker) endRefresh() {
	if w.refreshing == nil {
		return
	}
	w.refreshing.cancel()
	<-w.refreshing.done
	w.refreshing = nil
}
