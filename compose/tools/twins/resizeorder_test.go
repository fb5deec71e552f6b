package twins

import (
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	upstream "k8s.io/kubernetes/pkg/kubelet/allocation"

	"github.com/microlet/microlet/services/podsync/internal/allocation"
)

// pendingResize is a pod that asks for other resources than it has.
type pendingResize struct {
	Pod, Granted *v1.Pod
	// Pending is the pod's condition; nil if it has none yet.
	Pending *v1.PodCondition
}

// either says that the order depends on nothing that decides about resizes. The kubelet's comparison then says of each
// of the two that it comes first, or last.
const either = "either"

var _ = register(Pair[[2]pendingResize, string]{
	Name: "resizeorder",
	Generate: func(s *Source) [2]pendingResize {
		return [2]pendingResize{drawPendingResize(s, "a"), drawPendingResize(s, "b")}
	},
	Upstream: func(in [2]pendingResize) string {
		first, swapped := kubeletsFirst(in[0], in[1]), kubeletsFirst(in[1], in[0])
		if first != swapped {
			return either
		}
		return first
	},
	Ours: func(in [2]pendingResize) string {
		x, y := in[0], in[1]
		switch order, same := allocation.TwinOrder(x.Pod, x.Granted, x.Pending, y.Pod, y.Granted, y.Pending); {
		case same:
			return either
		case order < 0:
			return x.Pod.Name
		default:
			return y.Pod.Name
		}
	},
	Branches: func(in [2]pendingResize, out string) []string {
		if out == either {
			return []string{"leaves it open"}
		}
		first, second := in[0], in[1]
		if out == second.Pod.Name {
			first, second = second, first
		}
		switch {
		case priorityOf(first.Pod) > priorityOf(second.Pod):
			return []string{"puts a higher priority first"}
		case priorityOf(first.Pod) < priorityOf(second.Pod):
			return []string{"puts one that does not grow before a higher priority"}
		case first.Pending != nil && second.Pending != nil:
			return []string{"puts one that waits longer first, or a better class"}
		}
		return []string{"decides without conditions"}
	},
	Wanted: []string{
		"leaves it open", "puts a higher priority first", "puts one that does not grow before a higher priority",
		"puts one that waits longer first, or a better class", "decides without conditions",
	},
	Break: func(in [2]pendingResize, out *string) {
		switch *out {
		case in[0].Pod.Name:
			*out = in[1].Pod.Name
		case in[1].Pod.Name:
			*out = in[0].Pod.Name
		}
	},
})

func kubeletsFirst(x, y pendingResize) string {
	granted, conditions := map[types.UID]*v1.Pod{}, map[types.UID][]*v1.PodCondition{}
	for _, r := range []pendingResize{x, y} {
		granted[r.Pod.UID] = r.Granted
		if r.Pending != nil {
			conditions[r.Pod.UID] = []*v1.PodCondition{r.Pending}
		}
	}
	sorted, err := upstream.TwinOrder([]*v1.Pod{x.Pod, y.Pod}, granted, conditions)
	if err != nil {
		panic(fmt.Sprintf("the kubelet's memory refuses a pod: %v", err))
	}
	return sorted[0].Name
}

func drawPendingResize(s *Source, name string) pendingResize {
	p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)}}
	if s.Percent(60) {
		p.Spec.Priority = new(OneOf(s, int32(0), 1, -1, 1000))
	}
	amounts := func() v1.ResourceList {
		return v1.ResourceList{
			v1.ResourceCPU:    resource.MustParse(OneOf(s, "1", "2", "1500m")),
			v1.ResourceMemory: resource.MustParse(OneOf(s, "1Gi", "2Gi", "1500Mi")),
		}
	}
	p.Spec.Containers = []v1.Container{{Name: "c"}}
	if s.Percent(20) {
		always := v1.ContainerRestartPolicyAlways
		p.Spec.InitContainers = []v1.Container{{Name: "i", RestartPolicy: &always}}
	}
	guaranteed, podLevel := s.Percent(40), s.Percent(20)
	granted := p.DeepCopy()
	for _, version := range []*v1.Pod{granted, p} {
		for _, list := range [][]v1.Container{version.Spec.Containers, version.Spec.InitContainers} {
			for i := range list {
				list[i].Resources.Requests = amounts()
				if guaranteed {
					list[i].Resources.Limits = list[i].Resources.Requests
				}
			}
		}
		if podLevel {
			version.Spec.Resources = &v1.ResourceRequirements{Requests: amounts()}
			if guaranteed {
				version.Spec.Resources.Limits = version.Spec.Resources.Requests
			}
		}
	}
	r := pendingResize{Pod: p, Granted: granted}
	if s.Percent(60) {
		r.Pending = &v1.PodCondition{
			Type:               v1.PodResizePending,
			LastTransitionTime: metav1.NewTime(time.Unix(int64(60*(1+s.Intn(3))), 0)),
		}
	}
	return r
}
