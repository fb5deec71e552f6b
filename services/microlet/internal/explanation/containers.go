package explanation

import (
	"cmp"
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"

	podsyncv1 "github.com/microlet/microlet/proto/microlet/podsync/v1"
)

// containers are a pod's. The containers proper have no causes of their own while an init container keeps them.
func (p *subject) containers() *Node {
	var all []*Node
	for _, c := range p.e.GetContainers() {
		n := p.container(c)
		if c.GetType() == podsyncv1.ContainerExplanation_TYPE_EPHEMERAL && n.State != OK && p.status.Phase == v1.PodRunning {
			n.Message += " (the pod does not wait for it)"
		}
		all = append(all, n)
	}
	return group("containers", all)
}

// statusOf is the status of a container; nil if none was reported.
func (p *subject) statusOf(name string) *v1.ContainerStatus {
	for _, list := range [][]v1.ContainerStatus{
		p.status.InitContainerStatuses, p.status.ContainerStatuses, p.status.EphemeralContainerStatuses,
	} {
		for i := range list {
			if list[i].Name == name {
				return &list[i]
			}
		}
	}
	return nil
}

var typeNames = map[podsyncv1.ContainerExplanation_Type]string{
	podsyncv1.ContainerExplanation_TYPE_INIT:      " (init container)",
	podsyncv1.ContainerExplanation_TYPE_SIDECAR:   " (sidecar)",
	podsyncv1.ContainerExplanation_TYPE_EPHEMERAL: " (ephemeral container)",
}

func (p *subject) container(c *podsyncv1.ContainerExplanation) *Node {
	n := &Node{Name: c.GetName() + typeNames[c.GetType()], State: OK}
	s := p.statusOf(c.GetName())
	switch {
	case s == nil:
		n.State, n.Message = Waiting, "not started yet"
	case s.State.Running != nil:
		p.running(n, c, s)
	case s.State.Terminated != nil:
		terminated(n, s.State.Terminated)
	default:
		p.waits(n, c, s)
	}
	if n.State == Waiting && c.GetPullBegan() != nil {
		n.Reason = "Pulling"
		image := cmp.Or(c.GetPullImage(), c.GetImage()) // an older podsync does not say which
		n.Message = fmt.Sprintf("image %s is being pulled for %s", image, p.since(c.GetPullBegan().AsTime()))
	}
	return n
}

func (p *subject) running(n *Node, c *podsyncv1.ContainerExplanation, s *v1.ContainerStatus) {
	n.Message = "running for " + p.since(s.State.Running.StartedAt.Time)
	if s.RestartCount > 0 {
		n.Message += fmt.Sprintf(", restarted %d times, last: %s", s.RestartCount, end(s.LastTerminationState.Terminated))
	}
	var probes []*Node
	for _, probe := range c.GetProbes() {
		probes = append(probes, probeNode(probe, s))
	}
	if len(probes) > 0 {
		of := group(n.Name, probes)
		n.State, n.Children = of.State, probes
	}
	if c.GetType() == podsyncv1.ContainerExplanation_TYPE_INIT {
		n.State, n.Reason = Waiting, "PodInitializing"
		n.Message = "the pod waits for this init container to end, which is " + n.Message
	}
}

// probeNode is a probe of a container that runs.
func probeNode(probe *podsyncv1.ProbeState, s *v1.ContainerStatus) *Node {
	n := &Node{Name: probe.GetKind() + " probe", State: OK, Message: probe.GetTarget()}
	started := s.Started != nil && *s.Started
	switch probe.GetResult() {
	case podsyncv1.ProbeState_RESULT_FAILURE:
		n.State, n.Reason = Failed, "Unhealthy"
		n.Message += ": fails"
		n.Remedy = remedy("Unhealthy")
	case podsyncv1.ProbeState_RESULT_UNKNOWN:
		switch {
		case probe.GetKind() == "startup" && !started:
			n.State, n.Reason = Waiting, "NotStarted"
			n.Message += ": has not succeeded yet; the other probes wait for it"
			n.Remedy = remedy("Unhealthy")
		case probe.GetKind() == "readiness" && !s.Ready:
			n.State, n.Reason = Waiting, "NotReady"
			n.Message += ": has not succeeded yet"
			n.Remedy = remedy("Unhealthy")
		}
	case podsyncv1.ProbeState_RESULT_SUCCESS, podsyncv1.ProbeState_RESULT_UNSPECIFIED:
	}
	return n
}

func terminated(n *Node, t *v1.ContainerStateTerminated) {
	n.Message = end(t)
	if t.ExitCode == 0 {
		return
	}
	n.State, n.Reason, n.Remedy = Failed, t.Reason, remedy(t.Reason)
	if n.Reason == "" {
		n.Reason = "Error"
	}
}

// waits explains a container that is not started.
func (p *subject) waits(n *Node, c *podsyncv1.ContainerExplanation, s *v1.ContainerStatus) {
	n.State = Waiting
	w := s.State.Waiting
	if w == nil {
		n.Message = "not started yet"
		return
	}
	n.Message = w.Reason
	switch w.Reason {
	case "PodInitializing", "ContainerCreating", "":
		return // what it waits for is a part of its own
	}
	n.State, n.Reason, n.Message, n.Remedy = Failed, w.Reason, w.Message, remedy(w.Reason)
	switch w.Reason {
	case "CrashLoopBackOff":
		if last := s.LastTerminationState.Terminated; last != nil {
			n.Message = "it ended " + end(last)
		}
		if c.GetRestartAt() != nil {
			n.Message += "; next start " + p.in(c.GetRestartAt().AsTime())
		}
		n.Message += fmt.Sprintf("; restarts: %d", s.RestartCount)
		if last := s.LastTerminationState.Terminated; last != nil && last.Reason == "OOMKilled" {
			n.Remedy = remedy("OOMKilled")
		}
	case "ImagePullBackOff", "ErrImagePull":
		if c.GetPullError() != "" {
			n.Message = c.GetPullError()
		}
		if c.GetNextPull() != nil {
			n.Message += "; next try " + p.in(c.GetNextPull().AsTime())
		}
	}
}

// end says how a container ended.
func end(t *v1.ContainerStateTerminated) string {
	if t == nil {
		return "unknown"
	}
	text := fmt.Sprintf("with exit code %d", t.ExitCode)
	if t.Signal != 0 {
		text += fmt.Sprintf(" by signal %d", t.Signal)
	}
	if t.Reason != "" && t.Reason != "Completed" && t.Reason != "Error" {
		text += " (" + t.Reason + ")"
	}
	if took := t.FinishedAt.Sub(t.StartedAt.Time); took > 0 && !t.StartedAt.IsZero() {
		text += " after " + took.Round(time.Second).String()
	}
	if t.Message != "" {
		text += ": " + t.Message
	}
	return text
}
