package podgen

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

func TestGrow(t *testing.T) {
	spec := corev1.PodSpec{Containers: []corev1.Container{{}}}
	if Grow(&spec) {
		t.Error("a pod without resources has grown")
	}
	spec.Containers[0].Resources.Limits = corev1.ResourceList{corev1.ResourceEphemeralStorage: resource.MustParse("1Gi")}
	if Grow(&spec) {
		t.Error("local storage has grown")
	}
	spec.InitContainers = []corev1.Container{{Resources: corev1.ResourceRequirements{
		Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("5m")},
	}}}
	spec.Resources = &corev1.ResourceRequirements{
		Limits: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("1Gi")},
	}
	if !Grow(&spec) {
		t.Error("nothing has grown")
	}
	for want, got := range map[string]*resource.Quantity{
		"15m": spec.InitContainers[0].Resources.Requests.Cpu(), "1040Mi": spec.Resources.Limits.Memory(),
	} {
		if got.String() != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}
