package pods

import (
	"context"
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"
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
	case <-w.stopped:
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
	w.mu.Lock()
	if w.ended {
		w.mu.Unlock()
		return
	}
	before := w.grace(w.pod)
	if earlier := w.eviction; earlier != nil {
		if v.grace == nil || earlier.grace != nil && *earlier.grace < *v.grace {
			v.grace = earlier.grace
		}
		v.cause, v.override = earlier.cause, earlier.override
	}
	w.eviction = &v
	if w.cancelSync != nil && (!w.ending || w.grace(w.pod) < before) {
		w.cancelSync(errSyncCanceled)
	}
	w.mu.Unlock()
	w.wake()
}

// grace is what the containers of a pod that ends get: the shortest of what its deletion and
// its eviction say, or else its own. It is never under a second, so that a preStop hook has
// its chance. The caller holds mu.
func (w *worker) grace(p *v1.Pod) time.Duration {
	var shortest *int64
	asked := []*int64{p.DeletionGracePeriodSeconds}
	if w.eviction != nil {
		asked = append(asked, w.eviction.grace)
	}
	for _, seconds := range asked {
		if seconds != nil && (shortest == nil || *seconds < *shortest) {
			shortest = seconds
		}
	}
	if shortest == nil {
		shortest = p.Spec.TerminationGracePeriodSeconds
	}
	if shortest == nil {
		return time.Second
	}
	return time.Duration(max(*shortest, 1)) * time.Second
}

// graceSeconds is grace in the form that package decide takes.
func (w *worker) graceSeconds(p *v1.Pod) *int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return new(int64(w.grace(p) / time.Second))
}

// currentEviction returns the pod's eviction, or nil.
func (w *worker) currentEviction() *eviction {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.eviction
}
