package answer

import (
	"maps"
	"slices"

	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	resourcesv1 "github.com/microlet/microlet/proto/microlet/resources/v1"
)

// Merge adds to a container what the plugins of its resources say, by resource. Of two that set the same thing, the one
// whose resource comes first by name has it.
func Merge(to *resourcesv1.ContainerResources, answers map[string]*pluginapi.ContainerAllocateResponse) {
	m := merger{to: to, mounts: map[string]bool{}, nodes: map[string]bool{}, cdi: map[string]bool{}}
	for _, resource := range slices.Sorted(maps.Keys(answers)) {
		m.add(answers[resource])
	}
}

// merger knows what the container has already: mounts and device nodes by the path in the container.
type merger struct {
	to                 *resourcesv1.ContainerResources
	mounts, nodes, cdi map[string]bool
}

func (m merger) add(from *pluginapi.ContainerAllocateResponse) {
	m.to.Env = addMissing(m.to.Env, from.GetEnvs())
	m.to.Annotations = addMissing(m.to.Annotations, from.GetAnnotations())
	for _, mount := range from.GetMounts() {
		if first(m.mounts, mount.GetContainerPath()) {
			m.to.Mounts = append(m.to.Mounts, &resourcesv1.ContainerResources_Mount{
				ContainerPath: mount.GetContainerPath(), HostPath: mount.GetHostPath(), ReadOnly: mount.GetReadOnly(),
			})
		}
	}
	for _, d := range from.GetDevices() {
		if first(m.nodes, d.GetContainerPath()) {
			m.to.DeviceNodes = append(m.to.DeviceNodes, &resourcesv1.ContainerResources_DeviceNode{
				ContainerPath: d.GetContainerPath(), HostPath: d.GetHostPath(), Permissions: d.GetPermissions(),
			})
		}
	}
	for _, d := range from.GetCdiDevices() {
		if first(m.cdi, d.GetName()) {
			m.to.CdiDevices = append(m.to.CdiDevices, d.GetName())
		}
	}
}

// first notes a key, and reports whether it is new.
func first(seen map[string]bool, key string) bool {
	is := !seen[key]
	seen[key] = true
	return is
}

func addMissing(to, from map[string]string) map[string]string {
	if len(from) > 0 && to == nil {
		to = make(map[string]string, len(from))
	}
	for key, value := range from {
		if _, has := to[key]; !has {
			to[key] = value
		}
	}
	return to
}
