package status

import (
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/microlet/microlet/services/internal/podutil"
	"github.com/microlet/microlet/services/podsync/internal/pod/decide"
)

// Reasons of the pod's conditions.
const (
	reasonUnknownContainerStatuses = "UnknownContainerStatuses"
	reasonPodCompleted             = "PodCompleted"
	reasonPodFailed                = "PodFailed"
	reasonContainersNotReady       = "ContainersNotReady"
	reasonContainersNotInitialized = "ContainersNotInitialized"
	reasonReadinessGatesNotReady   = "ReadinessGatesNotReady"
	reasonPodSandboxNotReady       = "PodSandboxNotReady"
)

// owned are the condition types that a node agent alone writes. DisruptionTarget is shared
// with the control plane; all others are not ours.
var owned = []v1.PodConditionType{
	v1.PodScheduled, v1.PodReady, v1.PodInitialized, v1.ContainersReady, v1.PodReadyToStartContainers,
	v1.PodResizeInProgress, v1.PodResizePending, v1.AllContainersRestarting,
}

// IsOwnedCondition reports whether a node agent alone writes conditions of this type.
func IsOwnedCondition(t v1.PodConditionType) bool { return slices.Contains(owned, t) }

// conditions adds those of others, as the API had them last, and ours.
func (g *generator) conditions(s *v1.PodStatus) {
	s.Conditions = make([]v1.PodCondition, 0, len(g.pod.Status.Conditions)+5)
	for _, c := range g.pod.Status.Conditions {
		if !IsOwnedCondition(c.Type) {
			s.Conditions = append(s.Conditions, c)
		}
	}
	if !g.in.Terminal && !podutil.IsTerminal(s.Phase) {
		s.Conditions = append(s.Conditions, g.in.Resize...)
	}
	if c := podutil.Condition(g.old.Conditions, v1.DisruptionTarget); c != nil {
		podutil.SetCondition(s, *c)
	}
	if o := g.in.Override; o != nil && o.Condition != nil {
		g.add(s, *o.Condition)
	}

	all := slices.Concat(s.InitContainerStatuses, s.ContainerStatuses)
	g.add(s, g.readyToStart())
	g.add(s, g.initializedCondition(all, s.Phase))
	containersReady := g.containersReady(all, s.Phase)
	g.add(s, g.podReady(s.Conditions, containersReady))
	g.add(s, containersReady)
	g.add(s, v1.PodCondition{Type: v1.PodScheduled, Status: v1.ConditionTrue})
	if decide.CouldRestartAll(g.pod) {
		g.add(s, g.allRestarting(s.Phase))
	}
}

// add sets a condition with its generation and the time when its status changed last.
func (g *generator) add(s *v1.PodStatus, c v1.PodCondition) {
	if c.ObservedGeneration == 0 {
		c.ObservedGeneration = g.pod.Generation
	}
	c.LastTransitionTime = metav1.NewTime(g.in.Now)
	if before := podutil.Condition(g.old.Conditions, c.Type); before != nil && before.Status == c.Status {
		c.LastTransitionTime = before.LastTransitionTime
	}
	podutil.SetCondition(s, c)
}

func (g *generator) readyToStart() v1.PodCondition {
	c := v1.PodCondition{Type: v1.PodReadyToStartContainers, Status: v1.ConditionTrue}
	if g.st == nil {
		if before := podutil.Condition(g.old.Conditions, c.Type); before != nil {
			c.Status, c.Reason, c.Message = before.Status, before.Reason, before.Message
			return c
		}
		c.Status = v1.ConditionFalse
		c.Reason = reasonPodSandboxNotReady
		return c
	}
	if changed, _, message := decide.SandboxChanged(g.pod, g.st); changed {
		c.Status, c.Reason, c.Message = v1.ConditionFalse, reasonPodSandboxNotReady, message
	}
	return c
}

func (g *generator) initializedCondition(statuses []v1.ContainerStatus, phase v1.PodPhase) v1.PodCondition {
	c := v1.PodCondition{Type: v1.PodInitialized, Status: v1.ConditionTrue}
	if len(statuses) == 0 && len(g.pod.Spec.InitContainers) > 0 {
		c.Status, c.Reason = v1.ConditionFalse, reasonUnknownContainerStatuses
		return c
	}
	var unknown, incomplete []string
	for i := range g.pod.Spec.InitContainers {
		spec := &g.pod.Spec.InitContainers[i]
		s := podutil.ContainerStatus(statuses, spec.Name)
		switch {
		case s == nil:
			unknown = append(unknown, spec.Name)
		case podutil.IsSidecar(spec) && (s.Started == nil || !*s.Started), !podutil.IsSidecar(spec) && !s.Ready:
			incomplete = append(incomplete, spec.Name)
		}
	}
	if phase == v1.PodSucceeded && len(unknown) == 0 {
		c.Reason = reasonPodCompleted
		return c
	}
	// Once a regular container has been started the pod was initialized, even if a sidecar is
	// down at the moment.
	for i := range g.pod.Spec.Containers {
		if s := podutil.ContainerStatus(statuses, g.pod.Spec.Containers[i].Name); s != nil &&
			(s.State.Running != nil || s.State.Terminated != nil) {
			return c
		}
	}
	if message := named(unknown, "unknown", incomplete, "incomplete"); message != "" {
		// An initialized pod stays initialized while its containers restart.
		if before := podutil.Condition(g.old.Conditions, c.Type); before != nil && before.Status == v1.ConditionTrue {
			return c
		}
		c.Status, c.Reason, c.Message = v1.ConditionFalse, reasonContainersNotInitialized, message
	}
	return c
}

func (g *generator) containersReady(statuses []v1.ContainerStatus, phase v1.PodPhase) v1.PodCondition {
	c := v1.PodCondition{Type: v1.ContainersReady, Status: v1.ConditionFalse}
	if len(statuses) == 0 && phase != v1.PodFailed {
		c.Reason = reasonUnknownContainerStatuses
		return c
	}
	var unknown, unready []string
	for spec := range podutil.LongRunning(&g.pod.Spec) {
		switch s := podutil.ContainerStatus(statuses, spec.Name); {
		case s == nil:
			unknown = append(unknown, spec.Name)
		case !s.Ready:
			unready = append(unready, spec.Name)
		}
	}
	switch {
	case phase == v1.PodSucceeded && len(unknown) == 0:
		c.Reason = reasonPodCompleted
	case phase == v1.PodFailed:
		c.Reason = reasonPodFailed
	case len(unknown) > 0 || len(unready) > 0:
		c.Reason, c.Message = reasonContainersNotReady, named(unknown, "unknown", unready, "unready")
	default:
		c.Status = v1.ConditionTrue
	}
	return c
}

// podReady follows the containers, and asks for the pod's readiness gates as well.
func (g *generator) podReady(conditions []v1.PodCondition, containers v1.PodCondition) v1.PodCondition {
	c := v1.PodCondition{
		Type:    v1.PodReady,
		Status:  containers.Status,
		Reason:  containers.Reason,
		Message: containers.Message,
	}
	if containers.Status != v1.ConditionTrue {
		return c
	}
	var unmet []string
	for _, gate := range g.pod.Spec.ReadinessGates {
		switch have := podutil.Condition(conditions, gate.ConditionType); {
		case have == nil:
			unmet = append(unmet,
				fmt.Sprintf("corresponding condition of pod readiness gate %q does not exist.", gate.ConditionType))
		case have.Status != v1.ConditionTrue:
			unmet = append(unmet,
				fmt.Sprintf("the status of pod readiness gate %q is not \"True\", but %v", gate.ConditionType,
					have.Status))
		}
	}
	if len(unmet) > 0 {
		c.Status, c.Reason, c.Message = v1.ConditionFalse, reasonReadinessGatesNotReady, strings.Join(unmet, ", ")
	}
	return c
}

// named lists containers in the words that tools look for.
func named(first []string, firstKind string, second []string, secondKind string) string {
	var parts []string
	for _, list := range []struct {
		names []string
		kind  string
	}{{first, firstKind}, {second, secondKind}} {
		if len(list.names) > 0 {
			parts = append(parts, fmt.Sprintf("containers with %s status: %s", list.kind, list.names))
		}
	}
	return strings.Join(parts, ", ")
}
