package criconfig

import (
	"fmt"
	"path/filepath"
	"strings"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	resourcesv1 "github.com/microlet/microlet/proto/microlet/resources/v1"
)

// These bound what device plugins add to the configuration of a container.
const (
	maxGrantedMounts  = 1024
	maxGrantedDevices = 16384
	maxGrantedCDI     = 16384
	// maxGrantedAnnotation and maxGrantedAnnotations are of one annotation and of all: the runtime returns them with each
	// list of containers.
	maxGrantedAnnotation  = 8 << 10
	maxGrantedAnnotations = 64 << 10
)

// checkGranted refuses what device plugins cannot add to a container. private are the names of the folder that the
// container must not have anything of. A path that leads there by a link is not refused: a device plugin is root's.
func checkGranted(r *resourcesv1.ContainerResources, private []string) error {
	for _, bound := range []struct {
		what      string
		has, most int
	}{
		{"mounts", len(r.GetMounts()), maxGrantedMounts},
		{"devices", len(r.GetDeviceNodes()), maxGrantedDevices},
		{"CDI devices", len(r.GetCdiDevices()), maxGrantedCDI},
	} {
		if bound.has > bound.most {
			return refusedGrant("%d %s: at most %d are possible", bound.has, bound.what, bound.most)
		}
	}
	for _, m := range r.GetMounts() {
		if err := checkPaths("mount", m.GetHostPath(), m.GetContainerPath(), private); err != nil {
			return err
		}
	}
	for _, d := range r.GetDeviceNodes() {
		if err := checkPaths("device", d.GetHostPath(), d.GetContainerPath(), private); err != nil {
			return err
		}
		if strings.Trim(d.GetPermissions(), "rwm") != "" {
			return refusedGrant("device %.256q with permissions %.16q: they are some of r, w and m", d.GetHostPath(),
				d.GetPermissions())
		}
	}
	for _, name := range r.GetCdiDevices() {
		if name == "" || len(name) > 4096 || strings.ContainsRune(name, 0) {
			return refusedGrant("the CDI device %.256q: the name has 1 to 4096 bytes", name)
		}
	}
	for name := range r.GetEnv() {
		if name == "" || strings.ContainsAny(name, "=\x00") {
			return refusedGrant("the environment variable %.256q: a name is not empty, and has neither = nor NUL", name)
		}
	}
	return checkGrantedAnnotations(r.GetAnnotations())
}

func checkGrantedAnnotations(annotations map[string]string) error {
	all := 0
	for name, value := range annotations {
		if name == "" || len(value) > maxGrantedAnnotation {
			return refusedGrant("the annotation %.256q of %d bytes: it has a name, and %d bytes at most", name, len(value),
				maxGrantedAnnotation)
		}
		all += len(name) + len(value)
	}
	if all > maxGrantedAnnotations {
		return refusedGrant("annotations of %d bytes: at most %d are possible", all, maxGrantedAnnotations)
	}
	return nil
}

// checkPaths judges the paths of a mount or a device. The kernel bounds their length. Paths with ".." are possible, as
// with the kubelet.
func checkPaths(what, host, inContainer string, private []string) error {
	for _, path := range []string{host, inContainer} {
		if !filepath.IsAbs(path) || strings.ContainsRune(path, 0) {
			return refusedGrant("a %s of %.256q at %.256q: both must be absolute paths", what, host, inContainer)
		}
	}
	for _, folder := range private {
		if below, err := filepath.Rel(folder, filepath.Clean(host)); err == nil && filepath.IsLocal(below) {
			return refusedGrant("a %s of %.256q, which is the node agent's own", what, host)
		}
	}
	return nil
}

func refusedGrant(format string, args ...any) error {
	return fmt.Errorf("a device plugin set "+format, args...)
}

// addGranted adds what device plugins set to a container's configuration. As with the kubelet, it comes first among
// mounts and devices, and an annotation of the node agent replaces one of a plugin.
func addGranted(config *runtimeapi.ContainerConfig, r *resourcesv1.ContainerResources) {
	if r == nil {
		return
	}
	mounts := make([]*runtimeapi.Mount, 0, len(r.GetMounts())+len(config.Mounts))
	for _, m := range r.GetMounts() {
		mounts = append(mounts, &runtimeapi.Mount{
			HostPath: m.GetHostPath(), ContainerPath: m.GetContainerPath(), Readonly: m.GetReadOnly(),
			Propagation: runtimeapi.MountPropagation_PROPAGATION_PRIVATE,
		})
	}
	config.Mounts = append(mounts, config.Mounts...)
	nodes := make([]*runtimeapi.Device, 0, len(r.GetDeviceNodes())+len(config.Devices))
	for _, d := range r.GetDeviceNodes() {
		nodes = append(nodes, &runtimeapi.Device{
			HostPath: d.GetHostPath(), ContainerPath: d.GetContainerPath(), Permissions: d.GetPermissions(),
		})
	}
	config.Devices = append(nodes, config.Devices...)
	for _, name := range r.GetCdiDevices() {
		config.CDIDevices = append(config.CDIDevices, &runtimeapi.CDIDevice{Name: name})
	}
	for name, value := range r.GetAnnotations() {
		if _, own := config.Annotations[name]; !own {
			config.Annotations[name] = value
		}
	}
}
