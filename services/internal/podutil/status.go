package podutil

import v1 "k8s.io/api/core/v1"

// IsTerminal reports whether a pod of this phase has ended for good.
func IsTerminal(phase v1.PodPhase) bool { return phase == v1.PodSucceeded || phase == v1.PodFailed }

// ContainerStatus returns the status of the container of that name, or nil.
func ContainerStatus(statuses []v1.ContainerStatus, name string) *v1.ContainerStatus {
	for i := range statuses {
		if statuses[i].Name == name {
			return &statuses[i]
		}
	}
	return nil
}

// Condition returns the condition of that type, or nil.
func Condition(conditions []v1.PodCondition, t v1.PodConditionType) *v1.PodCondition {
	for i := range conditions {
		if conditions[i].Type == t {
			return &conditions[i]
		}
	}
	return nil
}

// SetCondition puts a condition in the place of the one of its type, or behind the others.
func SetCondition(s *v1.PodStatus, c v1.PodCondition) {
	if at := Condition(s.Conditions, c.Type); at != nil {
		*at = c
		return
	}
	s.Conditions = append(s.Conditions, c)
}
