package mirror

import (
	"math"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/microlet/microlet/services/internal/podutil"
	"github.com/microlet/microlet/services/podsync/internal/pod/decide"
)

// lostExitCode is what a container counts as having ended with that ran and is gone.
const lostExitCode = 137

// remembered is what a static pod takes from its mirror when podsync has been restarted. Others may write the status of
// a mirror too, so it is what the runtime does not know and what ends nothing: when the pod started, how often its
// containers did, which of them were ready, and since when its conditions hold. Whether anything has ended, the runtime
// says.
func remembered(p *v1.Pod, mirror *v1.PodStatus) v1.PodStatus {
	s := v1.PodStatus{
		StartTime: mirror.StartTime.DeepCopy(),
		HostIP:    mirror.HostIP, HostIPs: mirror.DeepCopy().HostIPs,
		ContainerStatuses:     rememberedContainers(p, mirror.ContainerStatuses),
		InitContainerStatuses: rememberedContainers(p, mirror.InitContainerStatuses),
	}
	if !podutil.IsTerminal(mirror.Phase) {
		s.Phase = mirror.Phase
	}
	if !p.Spec.HostNetwork { // the addresses of such a pod are the node's
		s.PodIP, s.PodIPs = mirror.PodIP, mirror.DeepCopy().PodIPs
	}
	for _, t := range []v1.PodConditionType{v1.PodReadyToStartContainers, v1.PodInitialized, v1.PodReady,
		v1.ContainersReady, v1.PodScheduled} {
		if c := podutil.Condition(mirror.Conditions, t); c != nil {
			s.Conditions = append(s.Conditions, v1.PodCondition{
				Type: t, Status: c.Status, LastTransitionTime: c.LastTransitionTime,
			})
		}
	}
	return s
}

func rememberedContainers(p *v1.Pod, statuses []v1.ContainerStatus) []v1.ContainerStatus {
	var all []v1.ContainerStatus
	for i := range statuses {
		of := &statuses[i]
		spec := podutil.Container(&p.Spec, of.Name)
		if spec == nil {
			continue
		}
		s := v1.ContainerStatus{
			Name: of.Name, ContainerID: of.ContainerID,
			// So that a count has room to grow.
			RestartCount: min(max(of.RestartCount, 0), math.MaxInt32/2),
		}
		// One that ran and is gone has ended, which may be the end of the pod.
		if of.State.Running != nil && decide.ShouldRestart(p, spec, lostExitCode) {
			s.State.Running = of.State.Running.DeepCopy()
			s.Ready = of.Ready
			if of.Started != nil {
				s.Started = new(*of.Started)
			}
		}
		all = append(all, s)
	}
	return all
}

// isOwned reports whether a pod of the API is a mirror: the Node owns it, which is this one and not an earlier one of
// its name. As long as the UID of the Node is not known, the name counts. The caller holds mu.
func (m *Manager) isOwned(mirror *v1.Pod) bool {
	o := metav1.GetControllerOf(mirror)
	return o != nil && o.APIVersion == v1.SchemeGroupVersion.String() && o.Kind == "Node" && o.Name == m.nodeName &&
		(m.nodeUID == "" || o.UID == m.nodeUID)
}
