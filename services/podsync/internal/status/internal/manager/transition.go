package manager

import (
	"slices"

	v1 "k8s.io/api/core/v1"

	"github.com/microlet/microlet/services/internal/podutil"
	"github.com/microlet/microlet/services/podsync/internal/pod/decide"
)

// keepEnds leaves those containers as the API has them that ended for good by its word, and of which s says otherwise.
// That happens in truth: a lost sandbox makes the init containers of a pod with restartPolicy OnFailure run again, and
// a container is started again if the runtime has lost its state. The API refuses such a status whole, so that nothing
// of the pod would be reported any more, and a pod that is being deleted would stay for ever.
func keepEnds(p *v1.Pod, api, s *v1.PodStatus) {
	if decide.CouldRestartAll(p) { // the API lets those go back
		return
	}
	s.ContainerStatuses = keepEnded(api.ContainerStatuses, s.ContainerStatuses, mayRestart(p))
	s.InitContainerStatuses = keepEnded(api.InitContainerStatuses, s.InitContainerStatuses, mayRestart(p))
	s.EphemeralContainerStatuses = keepEnded(api.EphemeralContainerStatuses, s.EphemeralContainerStatuses,
		func(string, int32) bool { return false })
}

// keepEnded returns the statuses with those that the API has in place of theirs that it would refuse.
func keepEnded(api, statuses []v1.ContainerStatus,
	restarts func(name string, exitCode int32) bool) []v1.ContainerStatus {
	var kept []v1.ContainerStatus
	for i := range statuses {
		s := &statuses[i]
		if s.State.Terminated != nil {
			continue
		}
		before := podutil.ContainerStatus(api, s.Name)
		if before == nil || before.State.Terminated == nil || restarts(s.Name, before.State.Terminated.ExitCode) {
			continue
		}
		if kept == nil {
			kept = slices.Clone(statuses)
		}
		kept[i] = *before.DeepCopy()
	}
	if kept == nil {
		return statuses
	}
	return kept
}

// mayRestart is the API's own question. Of a container that the pod does not have it takes nothing back.
func mayRestart(p *v1.Pod) func(name string, exitCode int32) bool {
	return func(name string, exitCode int32) bool {
		spec := podutil.Container(&p.Spec, name)
		return spec != nil && decide.ShouldRestart(p, spec, exitCode)
	}
}
