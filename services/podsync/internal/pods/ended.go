package pods

import (
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/microlet/microlet/services/internal/podutil"
)

const (
	// maxEnded is how large a pod may be that the other services get whole when it has ended. Any number of them may
	// wait for their deletion, such as those that were rejected, and the bus has room for a number of bytes.
	maxEnded = 16 << 10
	// maxImage is the longest name of an image that they get of a larger one.
	maxImage = 1 << 10
)

// forOthers is the version of the pod that the other services get.
func forOthers(p *v1.Pod, ended bool) *v1.Pod {
	if !ended && !podutil.IsTerminal(p.Status.Phase) || p.Size() <= maxEnded {
		return p
	}
	short := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: p.Namespace, Name: p.Name, UID: p.UID, ResourceVersion: p.ResourceVersion, Generation: p.Generation,
			CreationTimestamp: p.CreationTimestamp, DeletionTimestamp: p.DeletionTimestamp,
			DeletionGracePeriodSeconds: p.DeletionGracePeriodSeconds,
		},
		Spec: v1.PodSpec{NodeName: p.Spec.NodeName, RestartPolicy: p.Spec.RestartPolicy},
	}
	if s := &p.Status; len(s.ContainerStatuses)+len(s.InitContainerStatuses)+len(s.EphemeralContainerStatuses) == 0 {
		return short // none of its containers has logs
	}
	short.Spec.InitContainers = shortened(p.Spec.InitContainers)
	short.Spec.Containers = shortened(p.Spec.Containers)
	for _, c := range p.Spec.EphemeralContainers {
		c.EphemeralContainerCommon = v1.EphemeralContainerCommon{Name: c.Name}
		short.Spec.EphemeralContainers = append(short.Spec.EphemeralContainers, c)
	}
	return short
}

// shortened are containers by their names and images, for those who want their logs.
func shortened(containers []v1.Container) []v1.Container {
	short := make([]v1.Container, 0, len(containers))
	for i := range containers {
		c := v1.Container{Name: containers[i].Name, RestartPolicy: containers[i].RestartPolicy}
		if len(containers[i].Image) <= maxImage {
			c.Image = containers[i].Image
		}
		short = append(short, c)
	}
	return short
}
