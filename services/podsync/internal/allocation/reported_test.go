package allocation

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

func TestResourcesThatAStatusShows(t *testing.T) {
	memory := func(amount string) v1.ResourceList {
		return v1.ResourceList{v1.ResourceMemory: resource.MustParse(amount)}
	}
	wants := &v1.Pod{Spec: v1.PodSpec{Containers: []v1.Container{{
		Name: "c", Resources: v1.ResourceRequirements{Requests: memory("2Gi"), Limits: memory("4Gi")},
	}}}}
	for name, test := range map[string]struct {
		status v1.ContainerStatus
		want   v1.ResourceRequirements
	}{
		"none of its container": {v1.ContainerStatus{}, wants.Spec.Containers[0].Resources},
		"a container that waits": {
			v1.ContainerStatus{Name: "c", AllocatedResources: memory("1Gi")}, wants.Spec.Containers[0].Resources,
		},
		"a container that runs": {
			v1.ContainerStatus{
				Name: "c", ContainerID: "x://1", AllocatedResources: memory("1Gi"),
				Resources: &v1.ResourceRequirements{Limits: memory("3Gi"), Requests: memory("1Gi")},
			}, v1.ResourceRequirements{Requests: memory("1Gi"), Limits: memory("3Gi")},
		},
		"a limit that was added": {
			v1.ContainerStatus{
				Name: "c", ContainerID: "x://1", AllocatedResources: memory("1Gi"), Resources: &v1.ResourceRequirements{},
			}, v1.ResourceRequirements{Requests: memory("1Gi"), Limits: v1.ResourceList{}},
		},
		"no resources": {v1.ContainerStatus{Name: "c", ContainerID: "x://1"}, wants.Spec.Containers[0].Resources},
	} {
		p := wants.DeepCopy()
		p.Status.ContainerStatuses = []v1.ContainerStatus{test.status}
		if diff := cmp.Diff(test.want, withReportedResources(p).Spec.Containers[0].Resources); diff != "" {
			t.Errorf("%s:\n%s", name, diff)
		}
	}
	p := wants.DeepCopy()
	p.Spec.Resources = &v1.ResourceRequirements{Requests: memory("2Gi"), Limits: memory("4Gi")}
	p.Status.ContainerStatuses = []v1.ContainerStatus{{Name: "c", ContainerID: "x://1"}}
	p.Status.AllocatedResources = memory("1Gi")
	p.Status.Resources = &v1.ResourceRequirements{Limits: memory("3Gi")}
	if diff := cmp.Diff(v1.ResourceRequirements{Requests: memory("1Gi"), Limits: memory("3Gi")},
		*withReportedResources(p).Spec.Resources); diff != "" {
		t.Error(diff)
	}
}
