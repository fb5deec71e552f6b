package status

import (
	"cmp"
	"slices"
	"strings"
	"unicode/utf8"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	// maxMessages is what all termination messages of one pod may take together, in bytes.
	maxMessages = 12 << 10
	// maxCondition is what the message of a condition of ours may take. That of a resize has an error of the runtime, or a
	// text about each container.
	maxCondition = 12 << 10
	// maxWaiting is what the message of a container that waits may take, and maxAllWaiting what those of one pod may take
	// together. The kubelet has no such bounds. An error of a runtime or a hook may be longer than the API server takes.
	maxWaiting    = 12 << 10
	maxAllWaiting = 256 << 10
)

// Normalize brings a status to the form in which the apiserver gives it back, so that two
// can be compared: times in whole seconds, lists in their order, messages within their limit.
func Normalize(p *v1.Pod, s *v1.PodStatus) {
	n := max(len(p.Spec.Containers)+len(p.Spec.InitContainers)+len(p.Spec.EphemeralContainers), 1)
	terminated, waiting := maxMessages/n, min(maxWaiting, maxAllWaiting/n)
	if s.StartTime != nil {
		round(s.StartTime)
	}
	for i := range s.Conditions {
		c := &s.Conditions[i]
		round(&c.LastProbeTime)
		round(&c.LastTransitionTime)
		if IsOwnedCondition(c.Type) {
			c.Message = cut(c.Message, maxCondition)
		}
	}
	for i := range s.VolumeHealth {
		round(&s.VolumeHealth[i].LastTransitionTime)
	}
	for _, list := range [][]v1.ContainerStatus{s.ContainerStatuses, s.InitContainerStatuses,
		s.EphemeralContainerStatuses} {
		for i := range list {
			normalizeState(&list[i].State, terminated, waiting)
			normalizeState(&list[i].LastTerminationState, terminated, waiting)
		}
	}
	byName := func(a, b v1.ContainerStatus) int { return strings.Compare(a.Name, b.Name) }
	slices.SortFunc(s.ContainerStatuses, byName)
	slices.SortFunc(s.EphemeralContainerStatuses, byName)
	place := map[string]int{}
	for i := range p.Spec.InitContainers {
		place[p.Spec.InitContainers[i].Name] = i
	}
	slices.SortFunc(s.InitContainerStatuses,
		func(a, b v1.ContainerStatus) int { return cmp.Compare(place[a.Name], place[b.Name]) })
}

func normalizeState(s *v1.ContainerState, terminated, waiting int) {
	if s.Running != nil {
		round(&s.Running.StartedAt)
	}
	if t := s.Terminated; t != nil {
		round(&t.StartedAt)
		round(&t.FinishedAt)
		t.Message = cut(t.Message, terminated)
	}
	if w := s.Waiting; w != nil {
		w.Message = cut(w.Message, waiting)
	}
}

// cut keeps at most limit bytes of a message, and whole characters. What it cuts off is not kept in memory.
func cut(message string, limit int) string {
	if len(message) <= limit {
		return message
	}
	for limit > 0 && !utf8.RuneStart(message[limit]) {
		limit--
	}
	return strings.Clone(message[:limit])
}

func round(t *metav1.Time) { *t = t.Rfc3339Copy() }
