package status

import (
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/microlet/microlet/services/internal/podutil"
	"github.com/microlet/microlet/services/podsync/internal/pod"
	"github.com/microlet/microlet/services/podsync/internal/pod/decide"
)

const (
	// reasonCreating and reasonInitializing are why a container waits before its start, if nothing has failed.
	reasonCreating     = "ContainerCreating"
	reasonInitializing = "PodInitializing"
	// reasonStatusUnknown is for a container with an unknown end; lostExitCode goes with it.
	reasonStatusUnknown = "ContainerStatusUnknown"
	lostExitCode        = 137
	lostMessage         = "The container could not be located when the pod was terminated"
	vanishedMessage     = "The container could not be located when the pod was deleted.  The container used to be Running"
	forgottenInit       = "Unable to get init container status from container runtime and pod has been initialized, " +
		"treat it as exited normally"
)

// containers gives each container of the spec its status: regular ones ordered by name,
// init containers as in the spec, as clients expect them.
func (g *generator) containers(specs []v1.Container, old []v1.ContainerStatus, init bool) []v1.ContainerStatus {
	if len(specs) == 0 {
		return nil
	}
	statuses := make([]v1.ContainerStatus, 0, len(specs))
	for i := range specs {
		s := g.container(&specs[i], podutil.ContainerStatus(old, specs[i].Name))
		g.explain(&specs[i], &s, init)
		if !init {
			s.AllocatedResourcesStatus = g.devices(&specs[i], podutil.ContainerStatus(old, specs[i].Name))
		}
		statuses = append(statuses, s)
	}
	return statuses
}

// devices says which devices a container has. As with the kubelet, init containers have none to show. The API server
// refuses a status with a resource that the container does not ask for.
func (g *generator) devices(spec *v1.Container, old *v1.ContainerStatus) []v1.ResourceStatus {
	if g.in.Devices == nil && old != nil {
		return old.DeepCopy().AllocatedResourcesStatus
	}
	var asked []v1.ResourceStatus
	for _, s := range g.in.Devices[spec.Name] {
		if _, asks := spec.Resources.Limits[s.Name]; asks {
			asked = append(asked, s)
		}
	}
	return asked
}

func (g *generator) container(spec *v1.Container, old *v1.ContainerStatus) v1.ContainerStatus {
	newest, before := g.instances(spec.Name)
	if newest == nil {
		return g.missing(spec, old)
	}
	s := g.seen(spec, newest, old)
	if before != nil {
		if state := g.state(before, nil); state.Terminated != nil {
			s.LastTerminationState = state
		}
	}
	return s
}

// instances returns the newest container of a name and the one before it.
func (g *generator) instances(name string) (newest, before *pod.Container) {
	for i := range g.st.Containers {
		c := &g.st.Containers[i]
		switch {
		case c.Name != name:
		case newest == nil:
			newest = c
		default:
			return newest, c
		}
	}
	return newest, nil
}

// waitingByDefault is the state of a container that has not been made yet.
func (g *generator) waitingByDefault() v1.ContainerState {
	reason := reasonCreating
	if len(g.pod.Spec.InitContainers) > 0 {
		reason = reasonInitializing
	}
	return v1.ContainerState{Waiting: &v1.ContainerStateWaiting{Reason: reason}}
}

// missing is the status of a container that the runtime does not have: not made yet, or
// forgotten. What the API has of its end stays true.
func (g *generator) missing(spec *v1.Container, old *v1.ContainerStatus) v1.ContainerStatus {
	if g.restartingAll && old != nil && old.State.Waiting == nil {
		return g.resetStatus(spec, old)
	}
	if old != nil && old.State.Terminated != nil {
		return *old.DeepCopy()
	}
	s := v1.ContainerStatus{
		Name:         spec.Name,
		Image:        spec.Image,
		State:        g.waitingByDefault(),
		VolumeMounts: g.volumeMounts(spec),
	}
	if old == nil {
		return s
	}
	s.RestartCount = old.RestartCount
	s.LastTerminationState = *old.LastTerminationState.DeepCopy()
	if old.State.Running != nil && s.LastTerminationState.Terminated == nil {
		// It ran and is gone: that it waits must not look as if it had never run.
		s.LastTerminationState.Terminated = &v1.ContainerStateTerminated{
			Reason: reasonStatusUnknown, Message: vanishedMessage, ExitCode: lostExitCode,
		}
		if g.pod.DeletionTimestamp == nil {
			s.RestartCount++
		}
	}
	return s
}

// seen is the status of a container that the runtime has.
func (g *generator) seen(spec *v1.Container, c *pod.Container, old *v1.ContainerStatus) v1.ContainerStatus {
	s := v1.ContainerStatus{
		Name:         c.Name,
		State:        g.state(c, old),
		RestartCount: c.RestartCount,
		Image:        c.Image,
		ImageID:      c.ImageRef,
		ContainerID:  g.containerID(c),
		VolumeMounts: g.volumeMounts(spec),
		User:         user(c),
		Resources:    g.resources(spec, c),
		StopSignal:   g.stopSignal(c),
	}
	s.AllocatedResources = spec.Resources.DeepCopy().Requests
	if old == nil {
		return s
	}
	if len(old.VolumeMounts) > 0 && old.ContainerID == s.ContainerID {
		s.VolumeMounts = old.DeepCopy().VolumeMounts
	}
	s.RestartCount = max(s.RestartCount, old.RestartCount)
	if c.State == runtimeapi.ContainerState_CONTAINER_UNKNOWN && old.State.Running != nil {
		s.RestartCount++
	}
	if c.Running() && old.State.Terminated != nil && old.RestartCount >= c.RestartCount {
		// The runtime had forgotten the earlier instances, so the count of this one began at 0.
		s.RestartCount = old.RestartCount + 1
	}
	if old.ContainerID != s.ContainerID && old.State.Terminated != nil {
		s.LastTerminationState.Terminated = old.State.Terminated.DeepCopy()
	} else {
		s.LastTerminationState.Terminated = old.LastTerminationState.Terminated.DeepCopy()
	}
	return s
}

func (g *generator) containerID(c *pod.Container) string { return g.in.RuntimeName + "://" + c.ID }

func (g *generator) state(c *pod.Container, old *v1.ContainerStatus) v1.ContainerState {
	switch c.State {
	case runtimeapi.ContainerState_CONTAINER_RUNNING:
		return v1.ContainerState{Running: &v1.ContainerStateRunning{StartedAt: metav1.NewTime(c.Started)}}
	case runtimeapi.ContainerState_CONTAINER_EXITED:
		return v1.ContainerState{Terminated: &v1.ContainerStateTerminated{
			ExitCode: c.ExitCode, Reason: c.Reason, Message: c.Message,
			StartedAt: metav1.NewTime(c.Started), FinishedAt: metav1.NewTime(c.Finished), ContainerID: g.containerID(c),
		}}
	case runtimeapi.ContainerState_CONTAINER_UNKNOWN:
		if old == nil {
			break
		}
		if old.State.Running != nil {
			reason := reasonStatusUnknown
			if g.restartingAll {
				reason = reasonRestartingAll
			}
			return v1.ContainerState{Terminated: &v1.ContainerStateTerminated{
				Reason: reason, Message: lostMessage, ExitCode: lostExitCode,
			}}
		}
		if old.State.Terminated != nil && old.ContainerID == g.containerID(c) {
			return *old.State.DeepCopy()
		}
	case runtimeapi.ContainerState_CONTAINER_CREATED:
	}
	return v1.ContainerState{Waiting: &v1.ContainerStateWaiting{}}
}

// explain shows a container that should run but could not be started as waiting, with the reason, and an init container
// that the runtime has forgotten as done.
func (g *generator) explain(spec *v1.Container, s *v1.ContainerStatus, init bool) {
	newest := g.st.Latest(spec.Name)
	wantsStart := decide.WantsStart(g.pod, g.old, spec, newest)
	why, known := g.in.Waiting[spec.Name]
	if init && !podutil.IsSidecar(spec) {
		ended := newest != nil && newest.State == runtimeapi.ContainerState_CONTAINER_EXITED
		if ended && !decide.InitFailed(newest.ExitCode, newest.Reason) {
			return
		}
		if ended && !wantsStart && decide.RestartsFailedInit(g.pod, spec, newest.ExitCode) {
			wantsStart = true
			if !known { // the API server takes this end as one for good, and would refuse what follows
				why, known = Waiting{Reason: reasonInitializing}, true
			}
		}
		if newest == nil && s.State.Waiting != nil && decide.AnyCreated(g.pod, g.st) {
			s.State = v1.ContainerState{
				Terminated: &v1.ContainerStateTerminated{Reason: "Completed", Message: forgottenInit},
			}
			return
		}
	}
	if g.in.Terminal || g.pod.DeletionTimestamp != nil || !wantsStart {
		return
	}
	if ended := s.State.Terminated; newest == nil && ended != nil &&
		!decide.ShouldRestart(g.pod, spec, ended.ExitCode) {
		return // its remains are gone, and the reason to wait is one of the time before
	}
	if !known {
		return
	}
	if s.State.Terminated != nil {
		s.LastTerminationState = s.State
	}
	s.State = v1.ContainerState{Waiting: &v1.ContainerStateWaiting{Reason: why.Reason, Message: why.Message}}
}

// probes sets the fields that depend on probes. Without a result, the last values of the same container ID hold.
func (g *generator) probes(s *v1.PodStatus) {
	for i := range s.ContainerStatuses {
		c := &s.ContainerStatuses[i]
		if spec := podutil.Container(&g.pod.Spec, c.Name); spec != nil {
			g.probe(spec, c, podutil.ContainerStatus(g.old.ContainerStatuses, c.Name))
		}
	}
	for i := range s.InitContainerStatuses {
		c := &s.InitContainerStatuses[i]
		spec := podutil.Container(&g.pod.Spec, c.Name)
		if spec == nil {
			continue
		}
		g.probe(spec, c, podutil.ContainerStatus(g.old.InitContainerStatuses, c.Name))
		if !podutil.IsSidecar(spec) {
			ended := c.State.Terminated
			c.Ready = ended != nil && !decide.InitFailed(ended.ExitCode, ended.Reason)
		}
	}
}

func (g *generator) probe(spec *v1.Container, s, old *v1.ContainerStatus) {
	if old != nil && (old.ContainerID != s.ContainerID || old.State.Running == nil) {
		old = nil
	}
	id := bareID(s.ContainerID)
	started := s.State.Running != nil
	if started && spec.StartupProbe != nil {
		started = resultOr(g.in.Startup[id], old != nil && old.Started != nil && *old.Started)
	}
	s.Started = &started
	s.Ready = started
	if started && spec.ReadinessProbe != nil {
		s.Ready = resultOr(g.in.Readiness[id], old != nil && old.Ready)
	}
}

func resultOr(r decide.Result, before bool) bool {
	switch r {
	case decide.Success:
		return true
	case decide.Failure:
		return false
	default:
		return before
	}
}

func (g *generator) volumeMounts(spec *v1.Container) []v1.VolumeMountStatus {
	var mounts []v1.VolumeMountStatus
	for _, m := range spec.VolumeMounts {
		s := v1.VolumeMountStatus{Name: m.Name, MountPath: m.MountPath, ReadOnly: m.ReadOnly}
		if m.ReadOnly {
			mode := v1.RecursiveReadOnlyDisabled
			if g.in.RecursiveReadOnly && m.RecursiveReadOnly != nil &&
				*m.RecursiveReadOnly != v1.RecursiveReadOnlyDisabled {
				mode = v1.RecursiveReadOnlyEnabled
			}
			s.RecursiveReadOnly = &mode
		}
		mounts = append(mounts, s)
	}
	return mounts
}

// inAPI spells CRI's signals as the API does: SIGRTMINPLUS3 is SIGRTMIN+3 there.
var inAPI = strings.NewReplacer("PLUS", "+", "MINUS", "-")

// stopSignal is what ends the container; a runtime that does not say so sends its default.
func (g *generator) stopSignal(c *pod.Container) *v1.Signal {
	if !g.in.StopSignals || c.StopSignal == runtimeapi.Signal_SIGNAL_RUNTIME_DEFAULT {
		return nil
	}
	return new(v1.Signal(inAPI.Replace(strings.TrimPrefix(c.StopSignal.String(), "SIGNAL_"))))
}

func user(c *pod.Container) *v1.ContainerUser {
	linux := c.User.GetLinux()
	if linux == nil {
		return nil
	}
	return &v1.ContainerUser{Linux: &v1.LinuxContainerUser{
		UID: linux.Uid, GID: linux.Gid, SupplementalGroups: slices.Clone(linux.SupplementalGroups),
	}}
}

func deepCopyStatuses(statuses []v1.ContainerStatus) []v1.ContainerStatus {
	var copied []v1.ContainerStatus
	for i := range statuses {
		copied = append(copied, *statuses[i].DeepCopy())
	}
	return copied
}
