package criconfig

import (
	"fmt"
	"path/filepath"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	v1 "k8s.io/api/core/v1"
)

// volumeDevices are the block devices among the pod's volumes that the container gets.
func volumeDevices(c *v1.Container, in *ContainerInput) ([]*runtimeapi.Device, error) {
	var devices []*runtimeapi.Device
	for i := range c.VolumeDevices {
		d := &c.VolumeDevices[i]
		if !filepath.IsAbs(d.DevicePath) {
			return nil, fmt.Errorf("error DevicePath `%s` must be an absolute path", d.DevicePath)
		}
		volume, ok := in.Volumes[d.Name]
		if !ok || volume.Device == "" {
			return nil, fmt.Errorf("cannot find volume %q to pass into container %q", d.Name, c.Name)
		}
		permissions := "mrw"
		if volume.ReadOnly {
			permissions = "r"
		}
		devices = append(devices, &runtimeapi.Device{
			HostPath: volume.Device, ContainerPath: d.DevicePath, Permissions: permissions,
		})
	}
	return devices, nil
}
