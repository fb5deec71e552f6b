package resize

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/microlet/microlet/compose/e2e/scene"
)

// kind is one kind of pod that is resized. Its pods are created and resized by set, which gives everything in the spec
// that may change amounts by a size from least to most. Each container may get another size. The QoS class is the same
// with all sizes.
type kind struct {
	name string
	// make changes a pod of one container before its resources are set.
	make func(p *corev1.Pod)
	set  func(spec *corev1.PodSpec, size func() int64)
	// resized is what a resize sets besides, which the API server does not let go away again.
	resized func(spec *corev1.PodSpec, size func() int64)
	// restarts is the resource whose change restarts a container, which is called main then.
	restarts corev1.ResourceName
	// unready pods never have the condition Ready.
	unready bool
}

// Sizes.
const (
	least = int64(2)
	most  = int64(6)
)

// amounts are so many units of CPU and memory.
func amounts(unit [2]int64, size int64) corev1.ResourceList {
	return corev1.ResourceList{
		corev1.ResourceCPU:    *resource.NewMilliQuantity(unit[0]*size, resource.DecimalSI),
		corev1.ResourceMemory: *resource.NewQuantity(unit[1]*size, resource.BinarySI),
	}
}

// What a size is in thousandths of a CPU and in bytes. The node has room for the requests of all pods. A container that
// starts needs some CPU time, so limits are larger.
var (
	requested = [2]int64{4, 8 << 20}
	limited   = [2]int64{100, 16 << 20}
	both      = [2]int64{20, 16 << 20}
)

func setLimits(c *corev1.Container, size int64) {
	c.Resources = corev1.ResourceRequirements{Requests: amounts(requested, size), Limits: amounts(limited, size)}
}

func setGuaranteed(c *corev1.Container, size int64) {
	c.Resources = corev1.ResourceRequirements{Requests: amounts(both, size), Limits: amounts(both, size)}
}

func setMain(spec *corev1.PodSpec, size func() int64) { setLimits(&spec.Containers[0], size()) }

func none(*corev1.Pod) {}

// kinds are all kinds of pods.
var kinds = []kind{
	{name: "limits", make: none, set: setMain},
	{name: "requests", make: none, set: func(spec *corev1.PodSpec, size func() int64) {
		spec.Containers[0].Resources.Requests = amounts(requested, size())
	}},
	{name: "guaranteed", make: none, set: func(spec *corev1.PodSpec, size func() int64) {
		setGuaranteed(&spec.Containers[0], size())
	}},
	{name: "several", make: func(p *corev1.Pod) {
		p.Spec.Containers = append(p.Spec.Containers, scene.ShellContainer("second", scene.Forever))
	}, set: func(spec *corev1.PodSpec, size func() int64) {
		setMain(spec, size)
		spec.Containers[1].Resources.Requests = amounts(requested, size())
	}},
	{
		name: "added", make: none, set: func(spec *corev1.PodSpec, size func() int64) {
			spec.Containers[0].Resources.Requests = amounts(requested, size())
		},
		resized: func(spec *corev1.PodSpec, size func() int64) {
			// The limits are above the requests whatever the sizes are.
			spec.Containers[0].Resources.Limits = amounts(limited, size()+most)
		},
	},
	{name: "memory-restarts", make: restartsFor(corev1.ResourceMemory), set: setMain, restarts: corev1.ResourceMemory},
	{name: "cpu-restarts", make: restartsFor(corev1.ResourceCPU), set: setMain, restarts: corev1.ResourceCPU},
	{name: "sidecar", make: func(p *corev1.Pod) {
		c := scene.ShellContainer("sidecar", scene.Forever)
		c.RestartPolicy = new(corev1.ContainerRestartPolicyAlways)
		p.Spec.InitContainers = []corev1.Container{c}
	}, set: func(spec *corev1.PodSpec, size func() int64) {
		setMain(spec, size)
		setLimits(&spec.InitContainers[0], size())
	}},
	{name: "init", unready: true, make: func(p *corev1.Pod) {
		p.Spec.InitContainers = []corev1.Container{scene.ShellContainer("first", scene.Forever)}
	}, set: func(spec *corev1.PodSpec, size func() int64) {
		setMain(spec, size)
		setLimits(&spec.InitContainers[0], size())
	}},
	{name: "pod", make: func(p *corev1.Pod) {
		p.Spec.Containers = append(p.Spec.Containers, scene.ShellContainer("second", scene.Forever))
	}, set: func(spec *corev1.PodSpec, size func() int64) {
		setMain(spec, size)
		// The pod has room for its containers whatever the sizes are.
		of := size() + most
		spec.Resources = &corev1.ResourceRequirements{Requests: amounts(requested, of), Limits: amounts(limited, of)}
	}},
}

func restartsFor(name corev1.ResourceName) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.Containers[0].ResizePolicy = []corev1.ContainerResizePolicy{
			{ResourceName: name, RestartPolicy: corev1.RestartContainer},
		}
	}
}

// pod is one of the kind, bound to the node.
func (k *kind) pod(s *scene.Scene, name string, size int64) *corev1.Pod {
	p := scene.OnNode(scene.ScriptPod(name, scene.Forever), s.NodeName())
	k.make(p)
	k.set(&p.Spec, func() int64 { return size })
	return p
}

// resize sets everything to sizes.
func (k *kind) resize(size func() int64) func(*corev1.PodSpec) {
	return func(spec *corev1.PodSpec) {
		k.set(spec, size)
		if k.resized != nil {
			k.resized(spec, size)
		}
	}
}

// beyond asks for all CPU that the node may give, which it never has for one pod beside others. More than that is
// refused by the API server.
func beyond(allocatable resource.Quantity) func(*corev1.PodSpec) {
	return func(spec *corev1.PodSpec) {
		set := func(r *corev1.ResourceRequirements) {
			r.Requests[corev1.ResourceCPU] = allocatable
			if _, has := r.Limits[corev1.ResourceCPU]; has {
				r.Limits[corev1.ResourceCPU] = allocatable
			}
		}
		if spec.Resources != nil {
			set(spec.Resources)
			return
		}
		rest := allocatable.DeepCopy()
		for _, c := range spec.Containers[1:] {
			rest.Sub(*c.Resources.Requests.Cpu())
		}
		for _, c := range spec.InitContainers {
			if c.RestartPolicy != nil {
				rest.Sub(*c.Resources.Requests.Cpu())
			}
		}
		allocatable = rest
		set(&spec.Containers[0].Resources)
	}
}

// to sets the first container's resources.
func to(size int64) func(*corev1.PodSpec) {
	return func(spec *corev1.PodSpec) { setLimits(&spec.Containers[0], size) }
}
