package decide

import (
	v1 "k8s.io/api/core/v1"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/microlet/microlet/services/internal/podutil"
	"github.com/microlet/microlet/services/podsync/internal/pod"
)

// ephemeralContainers starts those that were added to the pod, whatever the state of its
// other containers: what they are to find out may be why those do not start. None is
// started twice, and none keeps the pod alive.
func (r *round) ephemeralContainers() {
	for i := range r.in.Pod.Spec.EphemeralContainers {
		spec := (*v1.Container)(&r.in.Pod.Spec.EphemeralContainers[i].EphemeralContainerCommon)
		if r.in.Refused[spec.Name] || !WantsEphemeral(r.in.reported(), spec.Name, r.in.State.Latest(spec.Name)) {
			continue
		}
		r.start(spec, i, false)
	}
}

// WantsEphemeral reports whether an ephemeral container with this newest instance has to be started: it has to unless
// it has run. An ephemeral container with a reported start has run, even if its instance was removed since.
func WantsEphemeral(reported *v1.PodStatus, name string, newest *pod.Container) bool {
	if newest != nil {
		return newest.State == runtimeapi.ContainerState_CONTAINER_CREATED
	}
	s := podutil.ContainerStatus(reported.EphemeralContainerStatuses, name)
	return s == nil || s.State.Terminated == nil && s.State.Running == nil
}
