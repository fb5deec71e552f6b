package resizing

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
)

// Condition returns a condition of a pod, or nil.
func Condition(p *corev1.Pod, kind corev1.PodConditionType) *corev1.PodCondition {
	for i := range p.Status.Conditions {
		if c := &p.Status.Conditions[i]; c.Type == kind {
			return c
		}
	}
	return nil
}

// Pending returns why a resize of the pod waits; "" if none does.
func Pending(p *corev1.Pod) string {
	if c := Condition(p, corev1.PodResizePending); c != nil {
		return c.Reason
	}
	return ""
}

// Running returns the status of each container that runs, by name.
func Running(p *corev1.Pod) map[string]corev1.ContainerStatus {
	all := map[string]corev1.ContainerStatus{}
	for _, c := range slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses) {
		if c.State.Running != nil {
			all[c.Name] = c
		}
	}
	return all
}

// Started returns the IDs of the containers in a status that run or have run. One that was created and never ran is
// none of them.
func Started(c *corev1.ContainerStatus) (ids []string) {
	if c.State.Running != nil {
		ids = append(ids, c.ContainerID)
	}
	for _, end := range []*corev1.ContainerStateTerminated{c.State.Terminated, c.LastTerminationState.Terminated} {
		// 1970 is how the runtime says that it has not started.
		if end != nil && end.StartedAt.Unix() > 0 {
			ids = append(ids, end.ContainerID)
		}
	}
	return ids
}

// Done returns nil when the pod's status shows the resources of its spec for each container that runs, and no resize.
func Done(p *corev1.Pod) error {
	if c := Condition(p, corev1.PodResizePending); c != nil {
		return fmt.Errorf("pod %s: its resize is pending: %s: %s", p.Name, c.Reason, c.Message)
	}
	if problems := StatusProblems(p, p); len(problems) > 0 {
		return fmt.Errorf("pod %s: %s", p.Name, strings.Join(problems, "; "))
	}
	return nil
}

// StatusProblems says in what the status of p does not show what is granted, which is p with other resources. A pod has
// a container that runs, unless one is about to start again.
func StatusProblems(p, granted *corev1.Pod) []string {
	var problems []string
	if c := Condition(p, corev1.PodResizeInProgress); c != nil {
		problems = append(problems, fmt.Sprintf("its resize is in progress: %s %s", c.Reason, c.Message))
	}
	running := Running(p)
	if len(running) == 0 {
		problems = append(problems, "none of its containers runs")
	}
	for _, c := range slices.Concat(granted.Spec.InitContainers, granted.Spec.Containers) {
		status, runs := running[c.Name]
		if !runs {
			continue
		}
		if !same(status.Resources, &c.Resources) {
			problems = append(problems, fmt.Sprintf("the status of %s has the resources %s, and %s are granted", c.Name,
				Text(status.Resources), Text(&c.Resources)))
		}
		if !equality.Semantic.DeepEqual(status.AllocatedResources, c.Resources.Requests) {
			problems = append(problems, fmt.Sprintf("the status of %s has the allocated resources %v, and %s are granted",
				c.Name, status.AllocatedResources, Text(&c.Resources)))
		}
	}
	return problems
}
