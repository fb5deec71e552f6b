package allocation

import (
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/microlet/microlet/services/podsync/internal/pod"
)

// Explanation is what is known of a pod's resources. It is shared: do not change it.
type Explanation struct {
	// Desired are those that the spec asks for.
	Desired pod.Resources
	// Granted are those that the node has granted; nil before the pod was admitted.
	Granted *pod.Resources
	// Actuated are those that were last given to the runtime and the cgroups; nil if that is not known.
	Actuated *pod.Resources
	// Pending and InProgress are the pod's conditions of these names; nil if it has none.
	Pending, InProgress *v1.PodCondition
	// Deciding: a decision on the pod is under way.
	Deciding bool
	// Unwritten is why the files of what is granted and given cannot be written; nil if they can.
	Unwritten error
}

// Explain returns what is known of a pod's resources; false for a pod that is not known.
func (a *Allocation) Explain(uid types.UID) (Explanation, bool) {
	unwritten := a.granted.unwritten()
	if unwritten == nil {
		unwritten = a.actuated.unwritten()
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	e := a.pods[uid]
	if e == nil {
		return Explanation{}, false
	}
	return Explanation{
		Desired: pod.ResourcesOf(e.wanted), Granted: e.granted, Actuated: e.actuated, Pending: e.pending,
		InProgress: e.progress, Deciding: e.deciding, Unwritten: unwritten,
	}, true
}
