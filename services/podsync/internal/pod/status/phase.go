package status

import (
	v1 "k8s.io/api/core/v1"

	"github.com/microlet/microlet/services/internal/podutil"
	"github.com/microlet/microlet/services/podsync/internal/pod/decide"
)

// phase sums up the containers' states.
func (g *generator) phase(statuses []v1.ContainerStatus) v1.PodPhase {
	init := g.countInit(statuses)
	if init.failedForGood {
		return v1.PodFailed
	}
	main := g.countMain(statuses)
	main.running += init.sidecarsRunning
	main.waiting += init.sidecarsWaiting
	main.unknown += init.sidecarsUnknown

	switch {
	case init.pending, init.sidecarsPending && !g.initialized():
		return v1.PodPending
	case main.waiting > 0:
		return v1.PodPending
	case main.running > 0 && main.unknown == 0:
		return v1.PodRunning
	case main.running == 0 && main.stopped > 0 && main.unknown == 0:
		// A static pod has no end of its own: it is to run as long as its manifest is there.
		if main.restarting > 0 && (!g.in.Terminal || podutil.IsStatic(g.pod)) {
			return v1.PodRunning
		}
		if main.succeeded == main.stopped {
			return v1.PodSucceeded
		}
		return v1.PodFailed
	default:
		return v1.PodPending
	}
}

type initCount struct {
	pending, failedForGood, sidecarsPending           bool
	sidecarsRunning, sidecarsWaiting, sidecarsUnknown int
}

func (g *generator) countInit(statuses []v1.ContainerStatus) (n initCount) {
	for i := range g.pod.Spec.InitContainers {
		spec := &g.pod.Spec.InitContainers[i]
		s := podutil.ContainerStatus(statuses, spec.Name)
		if podutil.IsSidecar(spec) {
			n.countSidecar(s)
			continue
		}
		ended := endOf(s)
		switch {
		case s == nil || s.State.Running != nil || ended == nil:
			n.pending = true
		case decide.InitFailed(ended.ExitCode, ended.Reason) && ended.Reason != reasonRestartingAll &&
			!decide.RestartsFailedInit(g.pod, spec, ended.ExitCode):
			n.failedForGood = true
		}
	}
	return n
}

// countSidecar leaves out a sidecar that has ended, now or before: the pod's phase does not depend on it.
func (n *initCount) countSidecar(s *v1.ContainerStatus) {
	switch {
	case s == nil:
		n.sidecarsUnknown++
	case s.State.Running != nil:
		n.sidecarsRunning++
		n.sidecarsPending = n.sidecarsPending || s.Started == nil || !*s.Started
	case s.State.Terminated != nil:
	case s.State.Waiting == nil:
		n.sidecarsUnknown++
		n.sidecarsPending = true
	case s.LastTerminationState.Terminated == nil:
		n.sidecarsWaiting++
		n.sidecarsPending = true
	}
}

type mainCount struct{ unknown, running, waiting, stopped, succeeded, restarting int }

func (g *generator) countMain(statuses []v1.ContainerStatus) (n mainCount) {
	for i := range g.pod.Spec.Containers {
		spec := &g.pod.Spec.Containers[i]
		s := podutil.ContainerStatus(statuses, spec.Name)
		switch {
		case s == nil:
			n.unknown++
		case s.State.Running != nil:
			n.running++
		case endOf(s) != nil:
			n.stopped++
			if s.State.Terminated != nil && s.State.Terminated.ExitCode == 0 {
				n.succeeded++
			}
			if g.runsAgain(spec, endOf(s)) {
				n.restarting++
			}
		case s.State.Waiting != nil:
			n.waiting++
		default:
			n.unknown++
		}
	}
	return n
}

// endOf returns how a container that does not run ended: now, or before it began to wait.
func endOf(s *v1.ContainerStatus) *v1.ContainerStateTerminated {
	switch {
	case s == nil:
		return nil
	case s.State.Terminated != nil:
		return s.State.Terminated
	case s.State.Waiting != nil:
		return s.LastTerminationState.Terminated
	default:
		return nil
	}
}

// initialized reports whether a regular container was made in the present sandbox, which takes
// all init containers to be through. A sandbox that is not ready will be replaced, and its successor is
// initialized again.
func (g *generator) initialized() bool {
	if g.st == nil {
		return false
	}
	present := g.st.ReadySandbox()
	if present == nil {
		return false
	}
	for i := range g.st.Containers {
		c := &g.st.Containers[i]
		if c.SandboxID == present.ID && hasSpec(g.pod.Spec.Containers, c.Name) {
			return true
		}
	}
	return false
}

func hasSpec(containers []v1.Container, name string) bool {
	for i := range containers {
		if containers[i].Name == name {
			return true
		}
	}
	return false
}
