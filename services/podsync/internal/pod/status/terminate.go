package status

import (
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/microlet/microlet/services/internal/podutil"
	"github.com/microlet/microlet/services/podsync/internal/pod/decide"
)

// Terminate makes a status final: nothing of the pod is left, so a container that is not known
// to have ended counts as failed, lest the pod look successful, and the phase is Succeeded or
// Failed. Containers of a pod that never got through its init containers stay as they are.
func Terminate(p *v1.Pod, s v1.PodStatus, now time.Time) v1.PodStatus {
	final := *s.DeepCopy()
	if wasInitialized(p, &s) {
		for i := range final.ContainerStatuses {
			end(&final.ContainerStatuses[i])
		}
	}
	for i := range attempted(final.InitContainerStatuses) {
		end(&final.InitContainerStatuses[i])
	}
	for i := range final.EphemeralContainerStatuses {
		// One that never ran has not failed. One that seems to run would hold up the end of the pod.
		if c := &final.EphemeralContainerStatuses[i]; c.State.Running != nil {
			c.State = lostState()
		}
	}
	if !podutil.IsTerminal(final.Phase) {
		if podutil.IsStatic(p) { // its mirror pod stays as it is: a static pod starts again when its manifest is back
			Normalize(p, &final)
			return final
		}
		final.Phase = v1.PodFailed
	}
	reason := reasonPodFailed
	if final.Phase == v1.PodSucceeded {
		reason = reasonPodCompleted
	}
	for _, t := range []v1.PodConditionType{v1.PodReady, v1.ContainersReady} {
		c := v1.PodCondition{
			Type: t, Status: v1.ConditionFalse, Reason: reason,
			ObservedGeneration: max(p.Generation, s.ObservedGeneration), LastTransitionTime: metav1.NewTime(now),
		}
		if before := podutil.Condition(s.Conditions, t); before != nil && before.Status == c.Status {
			c.LastTransitionTime = before.LastTransitionTime
		}
		podutil.SetCondition(&final, c)
	}
	Normalize(p, &final)
	return final
}

func end(s *v1.ContainerStatus) {
	s.Ready = s.Ready && s.State.Terminated != nil
	s.Started = new(false)
	if s.State.Terminated == nil {
		s.State = lostState()
	}
}

// lostState is the state of a container that left no trace of its end.
func lostState() v1.ContainerState {
	return v1.ContainerState{Terminated: &v1.ContainerStateTerminated{
		Reason: reasonStatusUnknown, Message: lostMessage, ExitCode: lostExitCode,
	}}
}

// wasInitialized reports whether a regular container may ever have been started.
func wasInitialized(p *v1.Pod, s *v1.PodStatus) bool {
	if len(p.Spec.InitContainers) == 0 {
		return true
	}
	for i := range s.ContainerStatuses {
		if c := &s.ContainerStatuses[i]; c.State.Waiting == nil || c.LastTerminationState.Terminated != nil {
			return true
		}
	}
	spec := &p.Spec.InitContainers[len(p.Spec.InitContainers)-1]
	last := podutil.ContainerStatus(s.InitContainerStatuses, spec.Name)
	switch {
	case last == nil:
		return false
	case podutil.IsSidecar(spec):
		return last.State.Running != nil && last.Started != nil && *last.Started
	default:
		ended := last.State.Terminated
		if ended == nil {
			ended = last.LastTerminationState.Terminated
		}
		return ended != nil && !decide.InitFailed(ended.ExitCode, ended.Reason)
	}
}

// attempted are the init containers up to the last one of which there is any trace; the
// first one counts in any case.
func attempted(statuses []v1.ContainerStatus) []v1.ContainerStatus {
	for i := len(statuses) - 1; i > 0; i-- {
		if statuses[i].State.Waiting == nil || statuses[i].LastTerminationState.Terminated != nil {
			return statuses[:i+1]
		}
	}
	return statuses[:min(1, len(statuses))]
}
