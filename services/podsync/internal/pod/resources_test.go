package pod

import (
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

func requirements(cpu string) v1.ResourceRequirements {
	return v1.ResourceRequirements{Requests: v1.ResourceList{v1.ResourceCPU: resource.MustParse(cpu)}}
}

func TestResources(t *testing.T) {
	whole := requirements("2")
	p := &v1.Pod{Spec: v1.PodSpec{
		Resources:      &whole,
		InitContainers: []v1.Container{{Name: "init", Resources: requirements("100m")}},
		Containers:     []v1.Container{{Name: "a", Resources: requirements("1")}, {Name: "b"}},
	}}
	r := ResourcesOf(p)
	if r.Of(p) != p {
		t.Error("a pod with the same resources is copied")
	}
	wanted := p.DeepCopy()
	wanted.Spec.Containers[0].Resources = requirements("1500m")
	wanted.Spec.InitContainers[0].Resources = requirements("0.2")
	wanted.Spec.Resources = nil
	if ResourcesOf(wanted).Equal(r) {
		t.Error("other resources are equal")
	}
	granted := r.Of(wanted)
	if !ResourcesOf(granted).Equal(r) || ResourcesOf(wanted).Equal(r) {
		t.Errorf("granted %v, and the pod that wants others has %v", ResourcesOf(granted), ResourcesOf(wanted))
	}
	wanted.Spec.Containers = append(wanted.Spec.Containers, v1.Container{Name: "c", Resources: requirements("3")})
	if got := r.Of(wanted).Spec.Containers[2].Resources; got.Requests[v1.ResourceCPU] != resource.MustParse("3") {
		t.Errorf("a container that was not granted anything has %v", got)
	}
	equal := ResourcesOf(p)
	equal.Containers["a"] = requirements("1000m")
	if !equal.Equal(r) {
		t.Error("1 and 1000m differ")
	}
}
