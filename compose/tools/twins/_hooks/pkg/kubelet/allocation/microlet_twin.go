package allocation

import (
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"k8s.io/kubernetes/pkg/kubelet/allocation/state"
	"k8s.io/kubernetes/pkg/kubelet/status"
)

// TwinOrder returns the pods in the order in which their pending resizes are decided upon. Each has its granted version
// and its conditions by its UID.
func TwinOrder(pods []*v1.Pod, granted map[types.UID]*v1.Pod,
	conditions map[types.UID][]*v1.PodCondition) ([]*v1.Pod, error) {
	logger, byUID := klog.Background(), map[types.UID]*v1.Pod{}
	m := &manager{
		allocated: state.NewStateMemory(logger, nil), statusManager: twinConditions{conditions: conditions},
		getPodByUID: func(uid types.UID) (*v1.Pod, bool) { p, ok := byUID[uid]; return p, ok },
	}
	for _, p := range pods {
		byUID[p.UID] = p
		if err := m.SetAllocatedResources(logger, granted[p.UID]); err != nil {
			return nil, err
		}
		m.podsWithPendingResizes = append(m.podsWithPendingResizes, p.UID)
	}
	m.sortPendingResizes(logger)
	var sorted []*v1.Pod
	for _, uid := range m.podsWithPendingResizes {
		sorted = append(sorted, byUID[uid])
	}
	return sorted, nil
}

// twinConditions knows the conditions of pods, and nothing else.
type twinConditions struct {
	status.Manager
	conditions map[types.UID][]*v1.PodCondition
}

func (c twinConditions) GetPodResizeConditions(uid types.UID) []*v1.PodCondition {
	return c.conditions[uid]
}
