package pods

import (
	"context"
	"errors"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/microlet/microlet/services/podsync/internal/pod"
	"github.com/microlet/microlet/services/podsync/internal/pod/status"
)

// inbox holds what others want of a worker: its pod, the removal of the pod and its eviction. It cancels the sync that
// runs if that has become wrong. Its methods may be called from any goroutine.
type inbox struct {
	allocation Allocation
	stopped    chan struct{} // closed when ended is set

	mu       sync.Mutex
	pod      *v1.Pod // with the resources that are granted
	wanted   *v1.Pod // as its source has it, with the resources that it asks for
	removed  bool
	again    *v1.Pod // a version that came after removed: the source names the pod again
	eviction *eviction
	// synced is the version of the last sync, or of the one that runs, and cancel ends that; nil if none runs.
	synced *v1.Pod
	cancel context.CancelCauseFunc
	// interrupt ends what the sync waits for that the next one can wait for as well; nil if it does not wait.
	interrupt context.CancelCauseFunc
	ending    bool // the pod is being stopped for good
	ended     bool // nothing of the pod will run again
}

func newInbox(p *v1.Pod, allocation Allocation) *inbox {
	return &inbox{allocation: allocation, stopped: make(chan struct{}), pod: allocation.Apply(p), wanted: p}
}

// update is how a newer version of a pod differs.
type update struct {
	old, pod *v1.Pod
	// asked is the older version as the source had it.
	asked *v1.Pod
	// late: the pod was removed before, and this version is kept for its next worker. first: no earlier one was.
	late, first bool
	// decides: it is nothing but other resources, and a decision on them follows at once.
	decides bool
	// sooner: the pod ends sooner by it.
	sooner bool
}

// set takes a newer version of the pod.
func (i *inbox) set(p *v1.Pod) update {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.removed {
		first := i.again == nil
		i.again = p
		return update{late: true, first: first}
	}
	u := update{old: i.pod, asked: i.wanted, decides: i.allocation.Want(p) && onlyResourcesChanged(i.wanted, p)}
	i.wanted = p
	p = i.allocation.Apply(p)
	i.pod, u.pod = p, p
	u.sooner = i.endsSooner(u.old, p)
	if u.sooner {
		i.cancelSync()
	}
	return u
}

// regrant takes the resources that are granted now, and reports whether they have changed.
func (i *inbox) regrant() bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.removed { // it is forgotten, or will be
		return false
	}
	p := i.allocation.Apply(i.wanted)
	if pod.ResourcesOf(p).Equal(pod.ResourcesOf(i.pod)) {
		return false
	}
	i.pod = p
	if i.interrupt != nil {
		i.interrupt(errRegranted)
	}
	return true
}

// errRegranted ends a wait because other resources were granted to the pod, which it is to have at once.
var errRegranted = errors.New("other resources were granted to the pod")

// untilRegranted returns a context for what the sync that runs waits for, and what ends the wait.
func (i *inbox) untilRegranted(ctx context.Context) (waiting context.Context, end func()) {
	waiting, cancel := context.WithCancelCause(ctx)
	i.mu.Lock()
	defer i.mu.Unlock()
	i.interrupt = cancel
	if i.synced != i.pod && !pod.ResourcesOf(i.synced).Equal(pod.ResourcesOf(i.pod)) {
		cancel(errRegranted)
	}
	return waiting, func() {
		i.mu.Lock()
		defer i.mu.Unlock()
		i.interrupt = nil
		cancel(nil)
	}
}

// remove notes that the pod's object is gone.
func (i *inbox) remove() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.removed, i.again = true, nil
	// A pod that is already stopping continues with its grace period, which is the same.
	if !i.ending && i.pod.DeletionTimestamp == nil {
		i.cancelSync()
	}
}

// evict takes an eviction, and reports whether there is something to end. Of several, the first one's override and the
// shortest grace period hold.
func (i *inbox) evict(v eviction) bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.ended {
		return false
	}
	before := i.grace(i.pod)
	if earlier := i.eviction; earlier != nil {
		if v.grace == nil || earlier.grace != nil && *earlier.grace < *v.grace {
			v.grace = earlier.grace
		}
		v.cause, v.override = earlier.cause, earlier.override
	}
	i.eviction = &v
	if !i.ending || i.grace(i.pod) < before {
		i.cancelSync()
	}
	return true
}

// expire evicts a pod whose deadline is over, unless it is evicted already.
func (i *inbox) expire() {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.eviction == nil {
		i.eviction = &eviction{causeDeadline,
			status.Override{Reason: reasonDeadlineExceeded, Message: messageDeadlineExceeded}, nil}
	}
}

// begin begins a sync that cancel ends. It returns the pod's newest version, and whether the pod was removed.
func (i *inbox) begin(cancel context.CancelCauseFunc) (p *v1.Pod, removed bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.cancel, i.synced = cancel, i.pod
	return i.pod, i.removed
}

// endSync notes that the sync has ended.
func (i *inbox) endSync() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.cancel = nil
}

// stopping notes that the pod is being stopped for good.
func (i *inbox) stopping() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.ending = true
}

// end notes that nothing of the pod will run again.
func (i *inbox) end() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.ended = true
	close(i.stopped)
}

// publish calls do with what the other services get of the pod's newest version, and whether the pod ends. desired is
// the pod with the resources that it asks for.
func (i *inbox) publish(do func(p, desired *v1.Pod, ends bool)) {
	i.mu.Lock()
	defer i.mu.Unlock() // held, so that an older version never comes after a newer one
	p, desired := forOthers(i.pod, i.ended), i.wanted
	if p != i.pod || i.ended {
		desired = p
	}
	do(p, desired, i.ending || i.pod.DeletionTimestamp != nil)
}

// current returns the pod's newest version, and whether it has ended.
func (i *inbox) current() (*v1.Pod, bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.pod, i.ended
}

func (i *inbox) latest() *v1.Pod {
	p, _ := i.current()
	return p
}

func (i *inbox) hasEnded() bool {
	_, ended := i.current()
	return ended
}

// inSync returns the version of the last sync, or of the one that runs, and whether the pod was removed.
func (i *inbox) inSync() (p *v1.Pod, removed bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.synced, i.removed
}

// wantedAgain returns the version of the pod that came after its removal, or nil.
func (i *inbox) wantedAgain() *v1.Pod {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.again
}

// currentEviction returns the pod's eviction, or nil.
func (i *inbox) currentEviction() *eviction {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.eviction
}

// graceSeconds is grace in the form that package decide takes.
func (i *inbox) graceSeconds(p *v1.Pod) *int64 {
	i.mu.Lock()
	defer i.mu.Unlock()
	return new(int64(i.grace(p) / time.Second))
}

// cancelSync ends the sync that runs, if one does. The caller holds mu.
func (i *inbox) cancelSync() {
	if i.cancel != nil {
		i.cancel(errSyncCanceled)
	}
}

// endsSooner reports whether p must end and its older version need not, or must end within a shorter grace period than
// it. The caller holds mu.
func (i *inbox) endsSooner(old, p *v1.Pod) bool {
	if p.DeletionTimestamp == nil || i.ended {
		return false
	}
	if old.DeletionTimestamp == nil && !i.ending {
		return true
	}
	return i.grace(p) < i.grace(old)
}

// grace is what the containers of a pod that ends get: the shortest of what its deletion and its eviction say, or else
// its own. It is never under a second, so that a preStop hook has its chance. The caller holds mu.
func (i *inbox) grace(p *v1.Pod) time.Duration {
	var shortest *int64
	asked := []*int64{p.DeletionGracePeriodSeconds}
	if i.eviction != nil {
		asked = append(asked, i.eviction.grace)
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
