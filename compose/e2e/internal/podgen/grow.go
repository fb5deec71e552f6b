package podgen

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// Grow raises what the containers and the pod ask for, and their limits, by the same amounts of CPU and memory, so that
// the QoS class stays. It reports whether there is anything to raise.
func Grow(spec *corev1.PodSpec) (grown bool) {
	more := corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("10m"), corev1.ResourceMemory: resource.MustParse("16Mi"),
	}
	raise := func(r *corev1.ResourceRequirements) {
		for _, list := range []corev1.ResourceList{r.Requests, r.Limits} {
			for name, by := range more {
				if has, ok := list[name]; ok {
					has.Add(by)
					list[name], grown = has, true
				}
			}
		}
	}
	for _, containers := range [][]corev1.Container{spec.InitContainers, spec.Containers} {
		for i := range containers {
			raise(&containers[i].Resources)
		}
	}
	if spec.Resources != nil {
		raise(spec.Resources)
	}
	return grown
}
