package pods

import (
	"math/rand/v2"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Workers are the workers of the node's pods. Its methods may be called from any goroutine, and only Evict blocks.
//
// They exist before the Dispatcher, which alone adds and removes workers. Components that wake workers need them, and
// workers use many of these components, so those are created before the Dispatcher.
type Workers struct {
	metrics *Metrics
	synced  chan struct{} // closed by the Dispatcher
	orphans chan struct{}

	mu    sync.Mutex
	byUID map[types.UID]*worker
	// toWake are the pods for which WakeAll has a timer.
	toWake map[types.UID]struct{}
}

// NewWorkers returns a node without pods.
func NewWorkers(metrics *Metrics) *Workers {
	return &Workers{
		metrics: metrics, synced: make(chan struct{}), orphans: make(chan struct{}, 1), byUID: map[types.UID]*worker{},
		toWake: map[types.UID]struct{}{},
	}
}

// Wake makes the worker of a pod sync again. A pod without a worker is left to clean-up.
func (s *Workers) Wake(uid types.UID, reason string) {
	s.metrics.Wakes.WithLabelValues(reason).Inc()
	w := s.worker(uid)
	if w != nil {
		w.wakeByOthers(wakeDelay)
	}
	if s.isSynced() && (w == nil || w.inbox.hasEnded()) {
		s.noticeOrphan() // a creation may end after its pod was deleted
	}
}

// Granted makes the worker of a pod take what is granted to it now, or report how its resize fares, at once.
func (s *Workers) Granted(uid types.UID) {
	if w := s.worker(uid); w != nil {
		s.metrics.Wakes.WithLabelValues("resize").Inc()
		w.granted()
	}
}

// Refresh makes a pod's worker sync again and bring the pod's volumes up to date.
func (s *Workers) Refresh(uid types.UID, reason string) {
	if w := s.worker(uid); w != nil {
		w.mounts.markStale()
	}
	s.Wake(uid, reason)
}

// WakeAll makes every worker sync again, spread over the jitter. A worker that waits for an earlier call is woken once
// for both, so pleg may call at any rate.
func (s *Workers) WakeAll(reason string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for uid := range s.byUID {
		if _, waits := s.toWake[uid]; waits {
			continue
		}
		s.toWake[uid] = struct{}{}
		time.AfterFunc(rand.N(adoptionJitter), func() {
			s.mu.Lock()
			delete(s.toWake, uid) // first, so that a call from now on wakes it again
			s.mu.Unlock()
			s.Wake(uid, reason)
		})
	}
}

// Orphans receives a notice when something happened to a pod that has no worker, or that has ended. Notices that were
// not received yet become one.
func (s *Workers) Orphans() <-chan struct{} { return s.orphans }

func (s *Workers) noticeOrphan() {
	select {
	case s.orphans <- struct{}{}:
	default:
	}
}

// Synced is closed once every source is synced: from then on a pod without a worker is no pod of this node.
func (s *Workers) Synced() <-chan struct{} { return s.synced }

func (s *Workers) isSynced() bool {
	select {
	case <-s.synced:
		return true
	default:
		return false
	}
}

// Known reports whether a pod has a worker.
func (s *Workers) Known(uid types.UID) bool { return s.worker(uid) != nil }

// Ended reports whether a pod has a worker that has stopped everything of it for good.
func (s *Workers) Ended(uid types.UID) bool {
	w := s.worker(uid)
	return w != nil && w.inbox.hasEnded()
}

// UIDs returns the pods that have workers.
func (s *Workers) UIDs() []types.UID {
	s.mu.Lock()
	defer s.mu.Unlock()
	uids := make([]types.UID, 0, len(s.byUID))
	for uid := range s.byUID {
		uids = append(uids, uid)
	}
	return uids
}

// Pods returns the pods that have workers and are not finished.
func (s *Workers) Pods() []*v1.Pod {
	workers := s.all()
	pods := make([]*v1.Pod, 0, len(workers))
	for _, w := range workers {
		if p, ended := w.inbox.current(); !ended {
			pods = append(pods, p)
		}
	}
	return pods
}

// Seen returns the digest of each pod's last read state; pods that were not read yet are left out.
func (s *Workers) Seen() map[types.UID]string {
	workers := s.all()
	seen := make(map[types.UID]string, len(workers))
	for _, w := range workers {
		if digest, read := w.standing.seen(); read {
			seen[w.uid] = digest
		}
	}
	return seen
}

func (s *Workers) all() []*worker {
	s.mu.Lock()
	defer s.mu.Unlock()
	workers := make([]*worker, 0, len(s.byUID))
	for _, w := range s.byUID {
		workers = append(workers, w)
	}
	return workers
}

func (s *Workers) worker(uid types.UID) *worker {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.byUID[uid]
}

func (s *Workers) add(w *worker) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.byUID[w.uid] = w
}

func (s *Workers) remove(uid types.UID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.byUID, uid)
}
