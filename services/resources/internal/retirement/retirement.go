// Package retirement notices the end of pods that were granted something.
//
// podsync says with each request which pods have a place, and what others hold is free then. In between, what a pod had
// that podsync has taken from PODS is not shown any more, so that readers of the bus and operators see it free.
package retirement

import (
	"context"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/microlet/microlet/services/internal/signal"
)

// delay is the time from a pod's end to that of its grant. A pod may come back with the UID that it had, as a static
// pod does, and be granted something before PODS has it.
const delay = 10 * time.Second

// Pods are the node's pods; see nodepods.View.
type Pods interface {
	// Has reports whether podsync has the pod.
	Has(uid types.UID) bool
}

// Retirement notices the end of pods.
type Retirement struct {
	pods   Pods
	forget func(uids ...types.UID)
	noted  signal.Signal

	mu   sync.Mutex
	seen map[types.UID]struct{}
	gone map[types.UID]time.Time // by when it was noticed
}

// New returns a retirement that has forget free what pods were granted.
func New(pods Pods, forget func(uids ...types.UID)) *Retirement {
	return &Retirement{
		pods: pods, forget: forget, noted: signal.New(), seen: map[types.UID]struct{}{},
		gone: map[types.UID]time.Time{},
	}
}

// Note notes that a pod has changed or is gone. It never blocks. A pod that was never there is not gone: its status may
// come first.
func (r *Retirement) Note(uid types.UID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	_, seen := r.seen[uid]
	switch {
	case r.pods.Has(uid):
		r.seen[uid] = struct{}{}
		delete(r.gone, uid)
	case seen:
		delete(r.seen, uid)
		r.gone[uid] = time.Now()
		r.noted.Set()
	}
}

// Asked notes that a grant is asked for a pod: it is not gone, whatever was seen before.
func (r *Retirement) Asked(uid types.UID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.gone, uid)
}

// Run frees what pods had that are gone, until the context ends.
func (r *Retirement) Run(ctx context.Context) error {
	var due <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-r.noted:
			if due == nil {
				due = time.After(delay)
			}
		case <-due:
			due = nil
			if left := r.retire(time.Now()); left {
				due = time.After(delay)
			}
		}
	}
}

// retire frees what those had that are gone for long enough, and reports whether others are left. A pod is not granted
// anything meanwhile.
func (r *Retirement) retire(now time.Time) (left bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var uids []types.UID
	for uid, since := range r.gone {
		if now.Sub(since) < delay {
			continue
		}
		delete(r.gone, uid)
		if !r.pods.Has(uid) {
			uids = append(uids, uid)
		}
	}
	if len(uids) > 0 {
		r.forget(uids...)
	}
	return len(r.gone) > 0
}
