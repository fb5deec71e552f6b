package pods

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/types"

	"github.com/microlet/microlet/services/podsync/internal/pod"
	"github.com/microlet/microlet/services/podsync/internal/pod/status"
)

// Evict ends a pod for a reason of the node's own (pressure, preemption, shutdown). It returns when the pod's
// containers have stopped, or with ctx's error if ctx ends first. The pod is stopped in both cases.
//
// The pod gets override's phase, reason, message and condition. The containers get grace seconds, or the pod's own
// grace period if grace is nil. Evict may be called again at any time, also for a pod that is being stopped already:
// the first override and the shortest grace period hold, and every call returns. It returns pod.ErrUnknown for a pod
// that has no worker.
//
// The eviction does not survive podsync: a pod whose containers had not all stopped when podsync ended runs on, and the
// caller must evict it again. Evict must not be called from the dispatcher's loop.
func (s *Workers) Evict(ctx context.Context, uid types.UID, override status.Override, grace *int64) error {
	w := s.worker(uid)
	if w == nil {
		return fmt.Errorf("evict pod %s: %w", uid, pod.ErrUnknown)
	}
	w.evict(eviction{causeEvicted, override, grace})
	select {
	case <-w.inbox.stopped:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("evict pod %s: its containers still run: %w", uid, ctx.Err())
	}
}

// eviction is why a pod is ended by its node, and within which grace period.
type eviction struct {
	cause    cause
	override status.Override
	grace    *int64
}

// evict gives the pod its eviction and makes its worker act on it at once.
func (w *worker) evict(v eviction) {
	if w.inbox.evict(v) {
		w.wake()
	}
}
