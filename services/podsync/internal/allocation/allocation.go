package allocation

import (
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"

	"github.com/microlet/microlet/services/internal/podutil"
	"github.com/microlet/microlet/services/podsync/internal/pod"
)

// Options of an Allocation. All are needed.
type Options struct {
	// Admission judges resizes.
	Admission Admission
	// RootDir has the files of what is granted and of what was given.
	RootDir string
	// Synced is closed once every source of pods has delivered its list. Nothing is decided before.
	Synced <-chan struct{}
	// Changed is called when the grant or the conditions of a pod have changed, and after each decision on a version of a
	// pod. It does not block.
	Changed func(uid types.UID)
	// Node is what Events about the node refer to.
	Node    *v1.ObjectReference
	Events  record.EventRecorder
	Log     *slog.Logger
	Metrics prometheus.Registerer
}

// Allocation knows the resources of this node's pods. Its methods do not block, except Run.
type Allocation struct {
	o       Options
	metrics *metrics
	// granted and actuated write the files.
	granted, actuated *file
	// signal wakes Run.
	signal chan struct{}

	mu   sync.Mutex
	pods map[types.UID]*entry
	// triggers are why Run looks at what waits, in the order in which they came.
	triggers []trigger
	// blocked: a pod was not judged because another grant was under way.
	blocked bool
}

// entry is what is known of one pod.
type entry struct {
	// wanted is the pod's newest version, with the resources that it asks for.
	wanted *v1.Pod
	// granted are the resources that the node has granted; nil before the pod was admitted.
	granted *pod.Resources
	// actuated are those that were given to the runtime and the cgroups; nil if that is not known.
	actuated *pod.Resources
	// waits: wanted asks for what is not granted and a decision may grant. fresh: it was not decided upon yet.
	waits, fresh bool
	// deciding: a decision on the pod is under way.
	deciding bool
	// notBefore is when a decision that failed is made again; zero if none has.
	notBefore time.Time
	// again is when the message of a pod that waits is made again; zero if it is up to date.
	again time.Time
	// ended: nothing of the pod will run any more.
	ended bool
	// pending and progress are the pod's conditions PodResizePending and PodResizeInProgress; nil if it has none.
	pending, progress *v1.PodCondition
	// bucket is the pod's priority as a label of metrics.
	bucket string
	// began is when the worker began to carry out what is granted; zero if it does not.
	began time.Time
}

// New returns an Allocation that knows what its files say. Run decides and writes.
func New(o Options) *Allocation {
	return newAllocation(o, open(&o, grantedFile), open(&o, actuatedFile))
}

func newAllocation(o Options, granted, actuated records) *Allocation {
	a := &Allocation{
		o: o, metrics: newMetrics(o.Metrics), signal: make(chan struct{}, 1), pods: map[types.UID]*entry{},
	}
	a.granted = newFile(granted, a.grantOf, o.Log.With("file", grantedFile))
	a.actuated = newFile(actuated, a.Actuated, o.Log.With("file", actuatedFile))
	return a
}

// Apply returns a version of a pod with the resources that the node has granted: those of the file, or those that the
// status of a pod shows that has run before. It is p itself for a pod that was not admitted yet.
func (a *Allocation) Apply(p *v1.Pod) *v1.Pod {
	a.mu.Lock()
	defer a.mu.Unlock()
	e := a.pods[p.UID]
	if e == nil {
		e = a.adopt(p)
	}
	if e.granted != nil {
		return e.granted.Of(p)
	}
	return withReportedResources(p)
}

// adopt takes over what an earlier podsync, or a kubelet, has left of a pod. The caller holds mu.
func (a *Allocation) adopt(p *v1.Pod) *entry {
	e := &entry{wanted: p, ended: podutil.IsTerminal(p.Status.Phase), bucket: priorityBucket(p)}
	a.pods[p.UID] = e
	if r, ok := a.granted.records.Get(p.UID); ok {
		e.granted = new(completed(r, p))
	}
	if r, ok := a.actuated.records.Get(p.UID); ok {
		e.actuated = &r
	}
	if e.ended {
		return e
	}
	for i := range p.Status.Conditions {
		switch c := p.Status.Conditions[i]; c.Type {
		case v1.PodResizePending:
			a.setPending(e, &c)
		case v1.PodResizeInProgress:
			a.setProgress(e, &c)
		}
	}
	a.consider(e, podsAdded)
	return e
}

// Admitted notes that a pod was admitted with the resources that this version of it has.
func (a *Allocation) Admitted(p *v1.Pod) {
	a.mu.Lock()
	defer a.mu.Unlock()
	e := a.pods[p.UID]
	if e == nil || e.ended {
		return
	}
	if e.granted == nil {
		r := pod.ResourcesOf(p)
		e.granted = &r
		a.granted.later(p.UID)
	}
	a.consider(e, podsAdded)
}

// Want takes the newest version of a pod, as its source has it. It reports whether a decision on the resources of this
// version follows at once, after which Changed is called.
func (a *Allocation) Want(p *v1.Pod) (decides bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	e := a.pods[p.UID]
	if e == nil {
		return false
	}
	before := e.wanted
	e.wanted = p
	if e.granted == nil || e.ended {
		return false
	}
	if pod.ResourcesOf(before).Equal(pod.ResourcesOf(p)) {
		return false // what was decided holds
	}
	a.metrics.request(before, p)
	return a.consider(e, podUpdated) && a.synced()
}

// consider has a pod decided upon that asks for other resources than it was granted, and reports whether it is. What
// such a pod waited for is over when it asks for what it has. The caller holds mu.
func (a *Allocation) consider(e *entry, why trigger) bool {
	if e.granted == nil || e.ended {
		return false
	}
	if pod.ResourcesOf(e.wanted).Equal(*e.granted) {
		e.waits, e.fresh = false, false
		a.resolve(e, reverted)
		return false
	}
	e.waits, e.fresh, e.notBefore = true, true, time.Time{}
	a.trigger(why)
	return true
}

// Ended notes that nothing of the pod will run any more: its place is free.
func (a *Allocation) Ended(uid types.UID) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if e := a.pods[uid]; e != nil && !e.ended {
		a.end(e)
		a.trigger(podTerminated)
	}
}

// end drops what an ended pod waits for. The caller holds mu.
func (a *Allocation) end(e *entry) {
	e.ended, e.waits, e.fresh = true, false, false
	a.resolve(e, terminated)
	a.setProgress(e, nil)
}

// Forget drops a pod that is gone.
func (a *Allocation) Forget(uid types.UID) {
	a.mu.Lock()
	defer a.mu.Unlock()
	e := a.pods[uid]
	if e == nil {
		return
	}
	a.end(e)
	delete(a.pods, uid)
	a.granted.later(uid)
	a.actuated.later(uid)
	a.trigger(podsRemoved)
}

func (a *Allocation) grantOf(uid types.UID) (pod.Resources, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if e := a.pods[uid]; e != nil && e.granted != nil {
		return *e.granted, true
	}
	return pod.Resources{}, false
}

func (a *Allocation) synced() bool {
	select {
	case <-a.o.Synced:
		return true
	default:
		return false
	}
}
