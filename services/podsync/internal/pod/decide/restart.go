package decide

import (
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/microlet/microlet/services/internal/podutil"
	"github.com/microlet/microlet/services/podsync/internal/pod"
)

// minGrace is the least time that a container gets to shut down: an unintended SIGKILL is worse than two seconds.
const minGrace = 2 * time.Second

// ShouldRestart reports whether a container that ended with this exit code runs again: by the
// first of its restart rules that matches, else by its own policy, else by the pod's.
func ShouldRestart(p *v1.Pod, c *v1.Container, exitCode int32) bool {
	if c.RestartPolicy == nil {
		return policyRestarts(p.Spec.RestartPolicy, exitCode)
	}
	if rule := matchingRule(c, exitCode); rule != nil {
		switch rule.Action {
		case v1.ContainerRestartRuleActionRestart, v1.ContainerRestartRuleActionRestartAllContainers:
			return true
		}
	}
	return policyRestarts(v1.RestartPolicy(*c.RestartPolicy), exitCode)
}

func policyRestarts(policy v1.RestartPolicy, exitCode int32) bool {
	switch policy {
	case v1.RestartPolicyNever:
		return false
	case v1.RestartPolicyOnFailure:
		return exitCode != 0
	default:
		return true
	}
}

// matchingRule returns the first restart rule that speaks of this exit code, or nil.
func matchingRule(c *v1.Container, exitCode int32) *v1.ContainerRestartRule {
	for i := range c.RestartPolicyRules {
		rule := &c.RestartPolicyRules[i]
		if rule.ExitCodes == nil {
			continue
		}
		listed := slices.Contains(rule.ExitCodes.Values, exitCode)
		if (rule.ExitCodes.Operator == v1.ContainerRestartRuleOnExitCodesOpIn && listed) ||
			(rule.ExitCodes.Operator == v1.ContainerRestartRuleOnExitCodesOpNotIn && !listed) {
			return rule
		}
	}
	return nil
}

// restartsAfterKill reports whether a container that is about to be stopped runs again. Its restart rules do not apply:
// there is no exit code yet.
func restartsAfterKill(p *v1.Pod, c *v1.Container) bool {
	if c.RestartPolicy != nil {
		return *c.RestartPolicy != v1.ContainerRestartPolicyNever
	}
	return p.Spec.RestartPolicy != v1.RestartPolicyNever
}

// WantsStart reports whether a container of which the newest instance is given has to be
// started. If the runtime has none, the end that the pod's status shows counts: a container
// that is to run once does not run again because its remains were removed.
func WantsStart(p *v1.Pod, reported *v1.PodStatus, c *v1.Container, newest *pod.Container) bool {
	switch {
	case newest == nil:
		ended := reportedEnd(reported, c.Name)
		return ended == nil || ShouldRestart(p, c, ended.ExitCode)
	case newest.State == runtimeapi.ContainerState_CONTAINER_RUNNING:
		return false
	case newest.State == runtimeapi.ContainerState_CONTAINER_EXITED:
		return ShouldRestart(p, c, newest.ExitCode)
	default: // created only, or unknown
		return true
	}
}

func (in *Input) wantsStart(c *v1.Container, newest *pod.Container) bool {
	return in.allAgain && newest == nil || exited(newest) && in.Owed[newest.ID] ||
		WantsStart(in.Pod, in.reported(), c, newest)
}

// toldEnd returns how a regular container ended according to a status, or nil.
func reportedEnd(reported *v1.PodStatus, name string) *v1.ContainerStateTerminated {
	for i := range reported.ContainerStatuses {
		if s := &reported.ContainerStatuses[i]; s.Name == name {
			return s.State.Terminated
		}
	}
	return nil
}

// MayRun reports whether a container has a process, or might have one.
func MayRun(c *pod.Container) bool {
	return c.State == runtimeapi.ContainerState_CONTAINER_RUNNING ||
		c.State == runtimeapi.ContainerState_CONTAINER_UNKNOWN
}

// NewKill is the stop of one container of a pod that runs on.
func NewKill(p *v1.Pod, spec *v1.Container, id, message string) Kill {
	return newKill(Input{Pod: p}, &pod.Container{ID: id, Name: spec.Name}, "", message)
}

// newKill fills in what every stop of a container needs.
func newKill(in Input, c *pod.Container, reason KillReason, message string) Kill {
	spec := podutil.Container(&in.Pod.Spec, c.Name)
	if message == "" {
		message = "Stopping container " + c.Name
	}
	grace := gracePeriod(in, spec, reason)
	return Kill{
		ID: c.ID, Name: c.Name, Spec: spec, Reason: reason, Message: message,
		Grace:   max(grace, minGrace),
		PreStop: grace > 0 && spec != nil && spec.Lifecycle != nil && spec.Lifecycle.PreStop != nil,

		PlainInit: spec != nil && !podutil.IsSidecar(spec) && podutil.IsInit(&in.Pod.Spec, c.Name),
	}
}

func gracePeriod(in Input, spec *v1.Container, reason KillReason) time.Duration {
	var seconds int64
	switch {
	case in.GraceOverride != nil:
		seconds = *in.GraceOverride
	case in.Pod.DeletionGracePeriodSeconds != nil:
		seconds = *in.Pod.DeletionGracePeriodSeconds
	case in.Pod.Spec.TerminationGracePeriodSeconds != nil:
		seconds = *in.Pod.Spec.TerminationGracePeriodSeconds
		if probe := killingProbe(spec, reason); probe != nil && probe.TerminationGracePeriodSeconds != nil {
			seconds = *probe.TerminationGracePeriodSeconds
		}
	}
	return time.Duration(seconds) * time.Second
}

func killingProbe(spec *v1.Container, reason KillReason) *v1.Probe {
	switch {
	case spec == nil:
		return nil
	case reason == KillLivenessProbe:
		return spec.LivenessProbe
	case reason == KillStartupProbe:
		return spec.StartupProbe
	default:
		return nil
	}
}
