package decide

import (
	"slices"

	v1 "k8s.io/api/core/v1"

	"github.com/microlet/microlet/services/internal/podutil"
	"github.com/microlet/microlet/services/podsync/internal/pod"
)

// CouldRestartAll reports whether a restart rule of the pod may restart all of its containers
// (KEP-5532).
func CouldRestartAll(p *v1.Pod) bool {
	restartsAll := func(r v1.ContainerRestartRule) bool {
		return r.Action == v1.ContainerRestartRuleActionRestartAllContainers
	}
	for c := range podutil.Containers(&p.Spec) {
		if slices.ContainsFunc(c.RestartPolicyRules, restartsAll) {
			return true
		}
	}
	return false
}

// RestartingAll reports whether all containers of the pod restart: one has ended in a way that causes it, or the pod's
// status shows that the restart has begun.
func RestartingAll(p *v1.Pod, st *pod.State, reported *v1.PodStatus) bool {
	if !CouldRestartAll(p) {
		return false
	}
	if c := podutil.Condition(reported.Conditions, v1.AllContainersRestarting); c != nil && c.Status == v1.ConditionTrue {
		return true
	}
	for c := range podutil.Containers(&p.Spec) {
		if newest := st.Latest(c.Name); exited(newest) && asksForAll(c, newest) {
			return true
		}
	}
	return false
}

// AllRemoved reports whether the runtime has none of the pod's containers any more, so that all can start again.
func AllRemoved(p *v1.Pod, st *pod.State) bool {
	return !slices.ContainsFunc(st.Containers, func(c pod.Container) bool { return isResettable(p, c.Name) })
}

func isResettable(p *v1.Pod, name string) bool {
	return podutil.IsInit(&p.Spec, name) ||
		slices.ContainsFunc(p.Spec.Containers, func(c v1.Container) bool { return c.Name == name })
}

func asksForAll(c *v1.Container, ended *pod.Container) bool {
	rule := matchingRule(c, ended.ExitCode)
	return rule != nil && rule.Action == v1.ContainerRestartRuleActionRestartAllContainers
}

// resetAll stops and removes every container of the pod except the ephemeral ones. The containers that caused the reset
// go last: while one of them is left, an interrupted reset begins again.
func resetAll(in Input) Actions {
	var a Actions
	var sources []string
	atOnce := in
	atOnce.GraceOverride = new(int64(0))
	for i := range in.State.Containers {
		c := &in.State.Containers[i]
		if !isResettable(in.Pod, c.Name) {
			continue
		}
		if MayRun(c) {
			kill := newKill(atOnce, c, "", "killing")
			kill.Restart = true
			a.Kill = append(a.Kill, kill)
		}
		if exited(c) && asksForAll(podutil.Container(&in.Pod.Spec, c.Name), c) {
			sources = append(sources, c.ID)
		} else {
			a.Reset = append(a.Reset, c.ID)
		}
	}
	a.Reset = append(a.Reset, sources...)
	return a
}
