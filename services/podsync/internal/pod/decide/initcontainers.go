package decide

import (
	"fmt"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/microlet/microlet/services/internal/podutil"
	"github.com/microlet/microlet/services/podsync/internal/pod"
)

type initState int

const (
	initPending initState = iota
	initDone
	initFailed
)

// initContainers moves the pod's init containers on by one step and keeps its sidecars running.
//
// Only containers of the present sandbox count: all init containers run again in a new sandbox. The last init container
// that was created there marks the progress. Earlier ones need not exist any more, since runtimes and cleaners remove
// ended containers. So a missing one only runs again if it is a sidecar.
func (r *round) initContainers() initState {
	p := r.in.Pod
	if len(p.Spec.InitContainers) == 0 {
		return initDone
	}
	frontier := -1
	for i := range p.Spec.InitContainers {
		if r.active(p.Spec.InitContainers[i].Name) != nil {
			frontier = i
		}
	}
	done := r.anyRegularActive()
	if frontier < 0 && !done {
		r.start(&p.Spec.InitContainers[0], 0, true)
		return initPending
	}

	last := len(p.Spec.InitContainers) - 1
	for i := range p.Spec.InitContainers {
		spec := &p.Spec.InitContainers[i]
		if i > frontier && !done {
			break
		}
		atFrontier := i == frontier && !done
		if podutil.IsSidecar(spec) {
			started := r.sidecar(spec, i)
			if atFrontier && started {
				done = r.advance(i, last)
			}
			continue
		}
		if !atFrontier {
			continue
		}
		switch r.plainInit(spec, i) {
		case initFailed:
			return initFailed
		case initDone:
			done = r.advance(i, last)
		case initPending:
		}
	}
	if done {
		return initDone
	}
	return initPending
}

// advance starts the init container after the one at index i; it reports whether there is none.
func (r *round) advance(i, last int) bool {
	if i == last {
		return true
	}
	r.start(&r.in.Pod.Spec.InitContainers[i+1], i+1, true)
	return false
}

// reasonOOMKilled is the runtimes' reason of a container in which a process was killed for memory.
const reasonOOMKilled = "OOMKilled"

// InitFailed reports whether an init container that ended so has failed. An init container in which a process was
// killed for memory has failed with every exit code: its work may be incomplete.
func InitFailed(exitCode int32, reason string) bool {
	return exitCode != 0 || reason == reasonOOMKilled
}

// RestartsFailedInit reports whether an init container that has failed with this exit code, which may be 0, runs again.
func RestartsFailedInit(p *v1.Pod, c *v1.Container, exitCode int32) bool {
	return ShouldRestart(p, c, exitCode) || restartsAfterKill(p, c)
}

// plainInit decides on the init container that marks the progress.
func (r *round) plainInit(spec *v1.Container, index int) initState {
	c := r.active(spec.Name)
	switch c.State {
	case runtimeapi.ContainerState_CONTAINER_RUNNING:
		return initPending
	case runtimeapi.ContainerState_CONTAINER_EXITED:
		if !InitFailed(c.ExitCode, c.Reason) {
			return initDone
		}
		if !RestartsFailedInit(r.in.Pod, spec, c.ExitCode) {
			return initFailed
		}
	case runtimeapi.ContainerState_CONTAINER_UNKNOWN:
		if !restartsAfterKill(r.in.Pod, spec) {
			return initFailed
		}
		r.killUnknown(c, "Init container")
	case runtimeapi.ContainerState_CONTAINER_CREATED:
	}
	r.start(spec, index, true)
	return initPending
}

// sidecar keeps a restartable init container running; it reports whether the container has
// started as far as those after it are concerned.
func (r *round) sidecar(spec *v1.Container, index int) (started bool) {
	c := r.active(spec.Name)
	if c == nil || !c.Running() {
		r.killUnknown(c, "Init container")
		r.start(spec, index, true)
		return false
	}
	if spec.StartupProbe != nil {
		switch r.in.Startup[c.ID] {
		case Unknown:
			return false
		case Failure:
			r.restart(spec, index, true, c, KillStartupProbe,
				fmt.Sprintf("Init container %s failed startup probe", spec.Name))
			return false
		case Success:
		}
	}
	switch {
	case r.changed(spec, c):
		r.restart(spec, index, true, c, "", fmt.Sprintf("Init container %s definition changed", spec.Name))
	case r.in.Liveness[c.ID] == Failure:
		r.restart(spec, index, true, c, KillLivenessProbe,
			fmt.Sprintf("Init container %s failed liveness probe", spec.Name))
	case r.resizeRestarts(spec, c):
		r.restart(spec, index, true, c, KillResize, resizeMessage(spec.Name))
	}
	return true
}

// restart stops a container that runs and starts it again.
func (r *round) restart(spec *v1.Container, index int, init bool, c *pod.Container, reason KillReason, message string) {
	kill := newKill(r.in, c, reason, message)
	kill.Restart = true
	r.actions.Kill = append(r.actions.Kill, kill)
	r.start(spec, index, init)
}

// active returns the newest instance of a container in the present sandbox, or nil.
func (r *round) active(name string) *pod.Container {
	for i := range r.in.State.Containers {
		c := &r.in.State.Containers[i]
		if c.Name == name && c.SandboxID == r.actions.SandboxID {
			return c
		}
	}
	return nil
}

func (r *round) anyRegularActive() bool {
	for i := range r.in.Pod.Spec.Containers {
		if r.active(r.in.Pod.Spec.Containers[i].Name) != nil {
			return true
		}
	}
	return false
}
