package pods

import (
	v1 "k8s.io/api/core/v1"

	"github.com/microlet/microlet/services/internal/podutil"
)

// gatesChanged reports whether a condition that the pod's readiness waits for has changed. Only the pod's status has
// it, and only others write it.
func gatesChanged(old, p *v1.Pod) bool {
	for _, gate := range p.Spec.ReadinessGates {
		if conditionStatus(old, gate.ConditionType) != conditionStatus(p, gate.ConditionType) {
			return true
		}
	}
	return false
}

func conditionStatus(p *v1.Pod, kind v1.PodConditionType) v1.ConditionStatus {
	if c := podutil.Condition(p.Status.Conditions, kind); c != nil {
		return c.Status
	}
	return ""
}
