package pods

import (
	"slices"
	"sync"
	"sync/atomic"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/microlet/microlet/services/podsync/internal/pod"
)

// allocations grants what grant says, and keeps what workers report.
type allocations struct {
	// decides is the answer to every pod that asks for other resources.
	decides bool
	// applied counts the calls of Apply.
	applied atomic.Int32

	mu       sync.Mutex
	granted  map[types.UID]pod.Resources
	wanted   map[types.UID]pod.Resources
	actuated map[types.UID]pod.Resources
	ended    map[types.UID]bool
	// progress are the pods of which a resize is in progress.
	progress map[types.UID]bool
	shown    map[types.UID][]v1.PodCondition
	// reported are what workers have said of resizes.
	reported []string
}

func newAllocations() *allocations {
	return &allocations{
		granted: map[types.UID]pod.Resources{}, wanted: map[types.UID]pod.Resources{},
		actuated: map[types.UID]pod.Resources{}, ended: map[types.UID]bool{}, shown: map[types.UID][]v1.PodCondition{},
		progress: map[types.UID]bool{},
	}
}

func (a *allocations) Apply(p *v1.Pod) *v1.Pod {
	a.applied.Add(1)
	a.mu.Lock()
	defer a.mu.Unlock()
	if r, ok := a.granted[p.UID]; ok {
		return r.Of(p)
	}
	return p
}

func (a *allocations) Admitted(p *v1.Pod) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if _, ok := a.granted[p.UID]; !ok {
		a.granted[p.UID] = pod.ResourcesOf(p)
	}
}

func (a *allocations) Want(p *v1.Pod) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.wanted[p.UID] = pod.ResourcesOf(p)
	granted, ok := a.granted[p.UID]
	return a.decides && ok && !granted.Equal(pod.ResourcesOf(p))
}

// grant grants what the pod's newest version asks for.
func (a *allocations) grant(uid types.UID) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.granted[uid], a.progress[uid] = a.wanted[uid], true
}

func (a *allocations) Conditions(uid types.UID) []v1.PodCondition {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.progress[uid] {
		return append(slices.Clone(a.shown[uid]), v1.PodCondition{Type: v1.PodResizeInProgress, Status: v1.ConditionTrue})
	}
	return a.shown[uid]
}

func (a *allocations) Actuated(uid types.UID) (pod.Resources, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	r, ok := a.actuated[uid]
	return r, ok
}

func (a *allocations) SetActuatedContainer(uid types.UID, name string, r v1.ResourceRequirements) {
	a.mu.Lock()
	defer a.mu.Unlock()
	all := a.actuated[uid]
	containers := map[string]v1.ResourceRequirements{name: r}
	for other, has := range all.Containers {
		if other != name {
			containers[other] = has
		}
	}
	a.actuated[uid] = pod.Resources{Containers: containers, Pod: all.Pod}
}

func (a *allocations) SetActuatedPod(uid types.UID, r *v1.ResourceRequirements) {
	a.mu.Lock()
	defer a.mu.Unlock()
	all := a.actuated[uid]
	all.Pod = r
	a.actuated[uid] = all
}

func (a *allocations) Actuating(p *v1.Pod) { a.report("actuating " + string(p.UID)) }
func (a *allocations) Completed(p *v1.Pod) {
	a.report("completed " + string(p.UID))
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.granted[p.UID].Equal(pod.ResourcesOf(p)) {
		delete(a.progress, p.UID)
	}
}
func (a *allocations) Failed(p *v1.Pod, why error) {
	a.report("failed " + string(p.UID) + ": " + why.Error())
}

func (a *allocations) report(what string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.reported = append(a.reported, what)
}

func (a *allocations) Ended(uid types.UID) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.ended[uid] = true
}

func (a *allocations) Forget(uid types.UID) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.granted, uid)
	delete(a.wanted, uid)
	delete(a.actuated, uid)
}
