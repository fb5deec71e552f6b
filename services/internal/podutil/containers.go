package podutil

import (
	"iter"
	"slices"

	v1 "k8s.io/api/core/v1"
)

// Containers yields the init containers and then the containers of a pod, each in its place in the spec.
func Containers(s *v1.PodSpec) iter.Seq[*v1.Container] {
	return func(yield func(*v1.Container) bool) {
		for _, list := range [][]v1.Container{s.InitContainers, s.Containers} {
			for i := range list {
				if !yield(&list[i]) {
					return
				}
			}
		}
	}
}

// AllContainers yields Containers and then the ephemeral containers, each as a container: the two share all fields
// but the target.
func AllContainers(s *v1.PodSpec) iter.Seq[*v1.Container] {
	return func(yield func(*v1.Container) bool) {
		for c := range Containers(s) {
			if !yield(c) {
				return
			}
		}
		for i := range s.EphemeralContainers {
			if !yield((*v1.Container)(&s.EphemeralContainers[i].EphemeralContainerCommon)) {
				return
			}
		}
	}
}

// UsesVolume reports whether a container of the pod mounts the volume of that name, and whether one maps it as a
// device.
func UsesVolume(s *v1.PodSpec, name string) (mounted, mapped bool) {
	for c := range AllContainers(s) {
		mounted = mounted || slices.ContainsFunc(c.VolumeMounts, func(m v1.VolumeMount) bool { return m.Name == name })
		mapped = mapped || slices.ContainsFunc(c.VolumeDevices, func(d v1.VolumeDevice) bool { return d.Name == name })
	}
	return mounted, mapped
}

// LongRunning yields the containers that run as long as the pod does: its sidecars and then its containers.
func LongRunning(s *v1.PodSpec) iter.Seq[*v1.Container] {
	return func(yield func(*v1.Container) bool) {
		for i := range s.InitContainers {
			if c := &s.InitContainers[i]; IsSidecar(c) && !yield(c) {
				return
			}
		}
		for i := range s.Containers {
			if !yield(&s.Containers[i]) {
				return
			}
		}
	}
}

// Container returns the container of that name, of whatever kind, or nil.
func Container(s *v1.PodSpec, name string) *v1.Container {
	for c := range AllContainers(s) {
		if c.Name == name {
			return c
		}
	}
	return nil
}

// IsInit reports whether the container of that name is an init container.
func IsInit(s *v1.PodSpec, name string) bool {
	return slices.ContainsFunc(s.InitContainers, func(c v1.Container) bool { return c.Name == name })
}

// IsEphemeral reports whether the container of that name is an ephemeral one.
func IsEphemeral(s *v1.PodSpec, name string) bool {
	return slices.ContainsFunc(s.EphemeralContainers, func(c v1.EphemeralContainer) bool { return c.Name == name })
}

// IsSidecar reports whether an init container is a restartable one (KEP-753): it runs beside the pod's containers
// instead of before them. Of other containers, which may have a restart policy too (KEP-5307), it must not be asked.
func IsSidecar(init *v1.Container) bool {
	return init.RestartPolicy != nil && *init.RestartPolicy == v1.ContainerRestartPolicyAlways
}
