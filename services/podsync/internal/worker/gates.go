package worker

import (
	v1 "k8s.io/api/core/v1"
)

// gatesChanged says whether a condition that the pod's readiness waits for is
// another than it was. Only the pod's status shows it, and only others write it.
func gatesChanged(old, p *v1.Pod) bool {
	for _, gate := range p.Spec.ReadinessGates {
		if conditionStatus(old, gate.ConditionType) != conditionStatus(p, gate.ConditionType) {
			return true
		}
	}
	return false
}

func conditionStatus(p *v1.Pod, kind v1.PodConditionType) v1.ConditionStatus {
	for i := range p.Status.Conditions {
		if p.Status.Conditions[i].Type == kind {
			return p.Status.Conditions[i].Status
		}
	}
	return ""
}
