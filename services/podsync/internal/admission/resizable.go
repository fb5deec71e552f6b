package admission

import (
	"context"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"

	"github.com/microlet/microlet/services/internal/podutil"
)

// Resizable rejects the resizes that this node can never do, whatever else runs there.
type Resizable struct {
	// PodLevel: the pod-level resources of a pod that runs may change.
	PodLevel bool
	// Swaps reports whether a container gets swap, of which its share depends on its memory request.
	Swaps func(p *v1.Pod, c *v1.Container) bool
}

// Admit implements Handler.
func (h Resizable) Admit(_ context.Context, a *Attributes) Result {
	switch {
	case !a.Resizes():
		return Result{}
	case h.movesSwap(a):
		return infeasible("swap_limitation", "In-place resize of containers with swap is not supported.")
	case !h.PodLevel && !equality.Semantic.DeepEqual(a.Pod.Spec.Resources, a.Granted.Spec.Resources):
		return infeasible("plr_feature_gate_off", "InPlacePodLevelResourcesVerticalScaling is disabled")
	}
	return Result{}
}

// movesSwap reports whether the share of swap changes of a container that is not started again for it.
func (h Resizable) movesSwap(a *Attributes) bool {
	for c := range podutil.Containers(&a.Pod.Spec) {
		has := podutil.Container(&a.Granted.Spec, c.Name)
		if has == nil || has.Resources.Requests.Memory().Cmp(*c.Resources.Requests.Memory()) == 0 ||
			restartsForMemory(has) {
			continue
		}
		if h.Swaps(a.Pod, c) || h.Swaps(a.Granted, has) {
			return true
		}
	}
	return false
}

func restartsForMemory(c *v1.Container) bool {
	for _, policy := range c.ResizePolicy {
		if policy.ResourceName == v1.ResourceMemory {
			return policy.RestartPolicy == v1.RestartContainer
		}
	}
	return false
}

func infeasible(detail, message string) Result {
	return Result{Reason: v1.PodReasonInfeasible, Message: message, Infeasible: detail}
}
