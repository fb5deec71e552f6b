package podstatus

import (
	"cmp"
	"slices"
	"strings"
	"unicode/utf8"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// maxMessages is what all termination messages of one pod may take together, in bytes.
const maxMessages = 12 * 1024

// Normalize brings a status to the form in which the apiserver gives it back, so that two
// can be compared: times in whole seconds, lists in their order, messages within their limit.
func Normalize(p *v1.Pod, s *v1.PodStatus) {
	limit := maxMessages
	if n := len(p.Spec.Containers) + len(p.Spec.InitContainers) + len(p.Spec.EphemeralContainers); n > 0 {
		limit /= n
	}
	if s.StartTime != nil {
		round(s.StartTime)
	}
	for i := range s.Conditions {
		round(&s.Conditions[i].LastProbeTime)
		round(&s.Conditions[i].LastTransitionTime)
	}
	for i := range s.VolumeHealth {
		round(&s.VolumeHealth[i].LastTransitionTime)
	}
	for _, list := range [][]v1.ContainerStatus{s.ContainerStatuses, s.InitContainerStatuses,
		s.EphemeralContainerStatuses} {
		for i := range list {
			normalizeState(&list[i].State, limit)
			normalizeState(&list[i].LastTerminationState, limit)
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

func normalizeState(s *v1.ContainerState, limit int) {
	if s.Running != nil {
		round(&s.Running.StartedAt)
	}
	if t := s.Terminated; t != nil {
		round(&t.StartedAt)
		round(&t.FinishedAt)
		if len(t.Message) > limit {
			cut := limit
			for cut > 0 && !utf8.RuneStart(t.Message[cut]) {
				cut--
			}
			t.Message = t.Message[:cut]
		}
	}
}

func round(t *metav1.Time) { *t = t.Rfc3339Copy() }
