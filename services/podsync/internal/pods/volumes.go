package pods

import (
	"context"
	"errors"
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/microlet/microlet/services/internal/logkey"
	"github.com/microlet/microlet/services/internal/tracing"
	"github.com/microlet/microlet/services/podsync/internal/admission"
	volume "github.com/microlet/microlet/services/podsync/internal/volumes"
)

type mounted struct {
	volumes map[string]volume.Mounted
	err     error
}

// volumes mounts the volumes that are missing, beside the rest of the sync. Volumes that are mounted are used as they
// are: a container that starts again does not wait for the API server.
//
// The objects that the volumes name must exist before this returns, and so before a sandbox starts, as under the
// kubelet: a pod that waits for one shows no sandbox.
func (w *worker) volumes(ctx context.Context, p *v1.Pod) (<-chan mounted, error) {
	result := make(chan mounted, 1)
	if existing, ok := w.deps.Volumes.Existing(p); ok {
		w.standing.noteMount(time.Time{}, nil)
		result <- mounted{volumes: existing}
		return result, nil
	}
	w.standing.noteMount(time.Now(), nil)
	if err := w.deps.Volumes.Check(ctx, p); err != nil {
		return nil, w.notMounted(ctx, p, err)
	}
	w.tasks.group.Go(func() {
		if !w.mounts.take(ctx) {
			result <- mounted{err: context.Cause(ctx)}
			return
		}
		defer w.mounts.give()
		ctx, span := tracing.Start(ctx, "WaitForAttachAndMount")
		volumes, err := w.deps.Volumes.Mount(ctx, p)
		span.End(err)
		if err != nil {
			err = w.notMounted(ctx, p, err)
		} else {
			w.standing.noteMount(time.Time{}, nil)
		}
		result <- mounted{volumes, err}
	})
	return result, nil
}

func (w *worker) notMounted(ctx context.Context, p *v1.Pod, err error) error {
	if ctx.Err() == nil {
		w.standing.noteMount(time.Time{}, err)
		w.reportNotMounted(p, err)
	}
	return reported("mount volumes", err)
}

// reportNotMounted sends an event for each volume that failed, as the kubelet does.
func (w *worker) reportNotMounted(p *v1.Pod, err error) {
	for _, one := range joined(err) {
		reason := reasonFailedMount
		var v *volume.Error
		if errors.As(one, &v) && v.IsMapping() {
			reason = reasonFailedMapVolume
		} else if v != nil && v.IsAttaching() {
			reason = reasonFailedAttachVolume
		}
		w.deps.event(p, v1.EventTypeWarning, reason, "%v", one)
	}
}

// rejectBeyondLimit ends a pod that waited for a volume for which the node has no room. The scheduler can then place
// another pod instead of it elsewhere. Reason and message are the kubelet's.
func (w *worker) rejectBeyondLimit(p *v1.Pod, err error) {
	var unmounted, unattached []string
	exceeds := false
	for _, one := range joined(errors.Unwrap(err)) {
		var v *volume.Error
		if !errors.As(one, &v) {
			continue
		}
		unmounted = append(unmounted, v.Volume)
		if v.IsUnattached() {
			unattached = append(unattached, v.Volume)
		}
		exceeds = exceeds || v.ExceedsLimit()
	}
	if !exceeds {
		return
	}
	const reason = "VolumeAttachmentLimitExceeded"
	w.deps.Admission.Rejected(reason)
	w.reject(p, admission.Result{Reason: reason, Message: fmt.Sprintf("Node has reached its volume attachment limit, "+
		"rejecting pod. unmounted volumes=%v, unattached volumes=%v, failed to process volumes=[]: %v", unmounted,
		unattached, context.DeadlineExceeded)})
}

// keepFresh refreshes mounted volumes from now on: at once when their sources have changed, and periodically, as tokens
// expire and a change may have been missed. It does so beside the syncs: a sync lasts while another container of the
// pod pulls its image or runs its hook, and may fail each time.
func (w *worker) keepFresh(ctx context.Context, p *v1.Pod) {
	if len(p.Spec.Volumes) > 0 && w.mounts.refreshing.begin(tracing.Outside(ctx), w.tasks, w.refresh) {
		w.mounts.refreshing.due(volume.NextRefresh())
	}
}

func (w *worker) refresh(ctx context.Context) {
	w.mounts.refreshing.due(volume.NextRefresh())
	p := w.inbox.latest()
	if !w.mounts.take(ctx) {
		return
	}
	defer w.mounts.give()
	if err := w.deps.Volumes.Refresh(ctx, p); err != nil && ctx.Err() == nil {
		w.reportNotMounted(p, err)
		w.deps.Log.Warn("volumes not refreshed, what is mounted stays", logkey.Pod, podName(p), logkey.PodUID, w.uid,
			logkey.Err, err)
	}
}

// mounts keeps the changes of a pod's volumes apart. Its methods may be called from any goroutine.
type mounts struct {
	// refreshing brings what is mounted up to date. It begins when the volumes are mounted.
	refreshing timed
	held       chan struct{} // full while something changes the volumes
}

func newMounts() *mounts { return &mounts{held: make(chan struct{}, 1)} }

// markStale has the volumes refreshed as soon as they are mounted, because their sources have changed.
func (m *mounts) markStale() { m.refreshing.due(0) }

// take waits until nothing else changes the pod's volumes. It returns false if ctx ends first.
func (m *mounts) take(ctx context.Context) bool {
	select {
	case m.held <- struct{}{}:
		return true
	case <-ctx.Done():
		return false
	}
}

func (m *mounts) give() { <-m.held }
