package status

import (
	v1 "k8s.io/api/core/v1"

	"github.com/microlet/microlet/services/internal/podutil"
	"github.com/microlet/microlet/services/podsync/internal/pod/decide"
)

// What a pod shows while all of its containers restart, in the kubelet's words.
const (
	reasonRestartingAll  = "RestartingAllContainers"
	messageRestartingAll = "The container is removed because RestartAllContainers in place"

	reasonRestartAllStarted  = "RestartAllContainersStarted"
	messageRestartAllStarted = "container exited with restart policy rule"
)

// resetStatus is the status of a container that was removed in order to restart. Its end is not the result of its
// program.
func (g *generator) resetStatus(spec *v1.Container, old *v1.ContainerStatus) v1.ContainerStatus {
	return v1.ContainerStatus{
		Name: spec.Name, Image: spec.Image, VolumeMounts: g.volumeMounts(spec), RestartCount: old.RestartCount + 1,
		State: v1.ContainerState{
			Waiting: &v1.ContainerStateWaiting{Reason: reasonRestartingAll, Message: messageRestartingAll},
		},
		LastTerminationState: v1.ContainerState{Terminated: &v1.ContainerStateTerminated{
			Reason: reasonRestartingAll, Message: messageRestartingAll, ExitCode: lostExitCode,
		}},
	}
}

// runsAgain reports whether a container that ended so will run again.
func (g *generator) runsAgain(spec *v1.Container, ended *v1.ContainerStateTerminated) bool {
	return ended.Reason == reasonRestartingAll || decide.ShouldRestart(g.pod, spec, ended.ExitCode)
}

// allRestarting is true from the exit that asks for it until the last container is removed.
func (g *generator) allRestarting(phase v1.PodPhase) v1.PodCondition {
	c := v1.PodCondition{Type: v1.AllContainersRestarting, Status: v1.ConditionFalse}
	switch {
	case phase == v1.PodSucceeded:
		c.Reason = reasonPodCompleted
	case phase == v1.PodFailed:
		c.Reason = reasonPodFailed
	case g.st == nil:
		if before := podutil.Condition(g.old.Conditions, c.Type); before != nil {
			c.Status, c.Reason, c.Message = before.Status, before.Reason, before.Message
		}
	case g.restartingAll && !decide.AllRemoved(g.pod, g.st):
		c.Status, c.Reason, c.Message = v1.ConditionTrue, reasonRestartAllStarted, messageRestartAllStarted
	}
	return c
}
