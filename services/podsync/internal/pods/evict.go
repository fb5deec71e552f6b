package pods

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/types"

	"github.com/microlet/microlet/services/podsync/internal/pod"
	"github.com/microlet/microlet/services/podsync/internal/pod/status"
)

// Evict ends a pod for a reason of the node's own (pressure, preemption, shutdown) and
// returns when its containers have stopped, or with ctx's error when that ends first; the
// pod is stopped all the same then.
//
// The pod gets override's phase, reason, message and condition; the containers get grace
// seconds, or the pod's own grace period if grace is nil. It can be asked for again at any
// time, and of a pod that is being stopped already: the first override stays, the shorter
// grace period holds, and each caller is answered. A pod that has no worker gives
// pod.ErrUnknown.
//
// The eviction does not survive podsync: a pod whose containers had not all stopped when
// podsync ended runs on, and who wants it evicted asks again. Do not call it from
// the dispatcher's loop.
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
