package status

import (
	v1 "k8s.io/api/core/v1"

	"github.com/microlet/microlet/services/internal/podutil"
	"github.com/microlet/microlet/services/podsync/internal/pod/decide"
)

// ephemerals are the statuses of the ephemeral containers. Neither the pod's phase nor its conditions depend on them.
func (g *generator) ephemerals() []v1.ContainerStatus {
	var statuses []v1.ContainerStatus
	for i := range g.pod.Spec.EphemeralContainers {
		spec := (*v1.Container)(&g.pod.Spec.EphemeralContainers[i].EphemeralContainerCommon)
		s := g.container(spec, podutil.ContainerStatus(g.old.EphemeralContainerStatuses, spec.Name))
		why, known := g.in.Waiting[spec.Name]
		if known && !g.in.Terminal && g.pod.DeletionTimestamp == nil &&
			decide.WantsEphemeral(g.old, spec.Name, g.st.Latest(spec.Name)) {
			s.State = v1.ContainerState{Waiting: &v1.ContainerStateWaiting{Reason: why.Reason, Message: why.Message}}
		}
		statuses = append(statuses, s)
	}
	return statuses
}
