package decide

import (
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/microlet/microlet/services/podsync/internal/pod"
)

// minGrace is what every container gets to shut down, whatever was asked: a SIGKILL
// that nobody wanted is worse than two seconds.
const minGrace = 2 * time.Second

// IsSidecar says whether an init container is a restartable one (KEP-753): it runs beside
// the pod's containers instead of before them.
func IsSidecar(c *v1.Container) bool {
	return c.RestartPolicy != nil && *c.RestartPolicy == v1.ContainerRestartPolicyAlways
}

// ShouldRestart says whether a container that ended with this exit code runs again: by the
// first of its restart rules that matches, else by its own policy, else by the pod's.
//
// The rule action RestartAllContainers is not carried out here; it falls through to the
// policies, as it does in a kubelet without that feature.
func ShouldRestart(p *v1.Pod, c *v1.Container, exitCode int32) bool {
	if c.RestartPolicy != nil {
		if restartRuleMatches(c, exitCode) {
			return true
		}
		return policyRestarts(v1.RestartPolicy(*c.RestartPolicy), exitCode)
	}
	return policyRestarts(p.Spec.RestartPolicy, exitCode)
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

func restartRuleMatches(c *v1.Container, exitCode int32) bool {
	for _, rule := range c.RestartPolicyRules {
		if rule.ExitCodes == nil {
			continue
		}
		listed := slices.Contains(rule.ExitCodes.Values, exitCode)
		if (rule.ExitCodes.Operator == v1.ContainerRestartRuleOnExitCodesOpIn && listed) ||
			(rule.ExitCodes.Operator == v1.ContainerRestartRuleOnExitCodesOpNotIn && !listed) {
			return rule.Action == v1.ContainerRestartRuleActionRestart
		}
	}
	return false
}

// restartsAfterKill says whether a container that is about to be stopped runs again. Its
// restart rules say nothing about that: there is no exit code yet.
func restartsAfterKill(p *v1.Pod, c *v1.Container) bool {
	if c.RestartPolicy != nil {
		return *c.RestartPolicy != v1.ContainerRestartPolicyNever
	}
	return p.Spec.RestartPolicy != v1.RestartPolicyNever
}

// WantsStart says whether a container of which the newest incarnation is given has to be
// started. If the runtime has none, the end that the API was told of counts: a container
// that is to run once does not run again because its remains were removed.
func WantsStart(p *v1.Pod, c *v1.Container, newest *pod.Container) bool {
	switch {
	case newest == nil:
		told := toldEnd(p, c.Name)
		return told == nil || ShouldRestart(p, c, told.ExitCode)
	case newest.State == runtimeapi.ContainerState_CONTAINER_RUNNING:
		return false
	case newest.State == runtimeapi.ContainerState_CONTAINER_EXITED:
		return ShouldRestart(p, c, newest.ExitCode)
	default: // created only, or unknown
		return true
	}
}

// toldEnd returns how the API was told that a regular container ended, or nil.
func toldEnd(p *v1.Pod, name string) *v1.ContainerStateTerminated {
	for i := range p.Status.ContainerStatuses {
		if s := &p.Status.ContainerStatuses[i]; s.Name == name {
			return s.State.Terminated
		}
	}
	return nil
}

// MayRun says whether a container has a process, or might have one.
func MayRun(c *pod.Container) bool {
	return c.State == runtimeapi.ContainerState_CONTAINER_RUNNING || c.State == runtimeapi.ContainerState_CONTAINER_UNKNOWN
}

// NewKill is the stop of one container of a pod that runs on.
func NewKill(p *v1.Pod, spec *v1.Container, id, message string) Kill {
	return newKill(Input{Pod: p}, &pod.Container{ID: id, Name: spec.Name}, "", message)
}

// newKill fills in what every stop of a container needs.
func newKill(in Input, c *pod.Container, reason KillReason, message string) Kill {
	spec := findSpec(in.Pod, c.Name)
	if message == "" {
		message = "Stopping container " + c.Name
	}
	grace := gracePeriod(in, spec, reason)
	return Kill{
		ID: c.ID, Name: c.Name, Spec: spec, Reason: reason, Message: message,
		Grace:   max(grace, minGrace),
		PreStop: grace > 0 && spec != nil && spec.Lifecycle != nil && spec.Lifecycle.PreStop != nil,

		PlainInit: spec != nil && !IsSidecar(spec) && isInit(in.Pod, c.Name),
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

func findSpec(p *v1.Pod, name string) *v1.Container {
	for i := range p.Spec.Containers {
		if p.Spec.Containers[i].Name == name {
			return &p.Spec.Containers[i]
		}
	}
	for i := range p.Spec.InitContainers {
		if p.Spec.InitContainers[i].Name == name {
			return &p.Spec.InitContainers[i]
		}
	}
	for i := range p.Spec.EphemeralContainers {
		if p.Spec.EphemeralContainers[i].Name == name {
			return (*v1.Container)(&p.Spec.EphemeralContainers[i].EphemeralContainerCommon)
		}
	}
	return nil
}
