package manager

import (
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"

	"github.com/microlet/microlet/services/podsync/internal/pod/status"
)

// normalized returns a copy of a status in that form.
func normalized(p *v1.Pod, s *v1.PodStatus) *v1.PodStatus {
	n := s.DeepCopy()
	status.Normalize(p, n)
	return n
}

// same reports whether two normalized statuses say the same of what a node agent writes. When
// a condition changed is not asked, only what it says.
func same(a, b *v1.PodStatus) bool {
	x, y := *a, *b
	x.Conditions, y.Conditions = ours(a.Conditions), ours(b.Conditions)
	// Written by others.
	x.ResourceClaimStatuses, y.ResourceClaimStatuses = nil, nil
	x.ExtendedResourceClaimStatus, y.ExtendedResourceClaimStatus = nil, nil
	x.NodeAllocatableResourceClaimStatuses, y.NodeAllocatableResourceClaimStatuses = nil, nil
	x.NominatedNodeName, y.NominatedNodeName = "", ""
	return equality.Semantic.DeepEqual(&x, &y)
}

// ours are the conditions that a node agent writes, in one order, without their times.
func ours(conditions []v1.PodCondition) []v1.PodCondition {
	var list []v1.PodCondition
	for _, c := range conditions {
		if !status.IsOwnedCondition(c.Type) && c.Type != v1.DisruptionTarget {
			continue
		}
		list = append(list, v1.PodCondition{
			Type:               c.Type,
			Status:             c.Status,
			Reason:             c.Reason,
			Message:            c.Message,
			ObservedGeneration: c.ObservedGeneration,
		})
	}
	slices.SortFunc(list, func(a, b v1.PodCondition) int { return strings.Compare(string(a.Type), string(b.Type)) })
	return list
}
