package criconfig

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	v1 "k8s.io/api/core/v1"

	"github.com/microlet/microlet/services/podsync/internal/volumes"
)

func TestVolumeDevices(t *testing.T) {
	in := ContainerInput{Volumes: map[string]volumes.Mounted{
		"disk": {Device: "/pods/u/disk"}, "read": {Device: "/pods/u/read", ReadOnly: true}, "files": {HostPath: "/files"},
	}}
	for name, c := range map[string]struct {
		devices []v1.VolumeDevice
		mounts  []v1.VolumeMount
		want    []*runtimeapi.Device
		err     string
	}{
		"devices": {
			devices: []v1.VolumeDevice{{Name: "disk", DevicePath: "/dev/disk"}, {Name: "read", DevicePath: "/mnt/read"}},
			want: []*runtimeapi.Device{
				{HostPath: "/pods/u/disk", ContainerPath: "/dev/disk", Permissions: "mrw"},
				{HostPath: "/pods/u/read", ContainerPath: "/mnt/read", Permissions: "r"},
			},
		},
		"relative": {devices: []v1.VolumeDevice{{Name: "disk", DevicePath: "dev/disk"}},
			err: "error DevicePath `dev/disk` must be an absolute path"},
		"none": {devices: []v1.VolumeDevice{{Name: "none", DevicePath: "/dev/disk"}},
			err: `cannot find volume "none" to pass into container "c"`},
		"files as a device": {devices: []v1.VolumeDevice{{Name: "files", DevicePath: "/dev/disk"}},
			err: `cannot find volume "files" to pass into container "c"`},
		"a device as files": {mounts: []v1.VolumeMount{{Name: "disk", MountPath: "/disk"}},
			err: `cannot find volume "disk" to mount into container "c"`},
	} {
		t.Run(name, func(t *testing.T) {
			b, p := builder(t), plainPod()
			if err := b.Prepare(p); err != nil {
				t.Fatal(err)
			}
			container := &v1.Container{Name: "c", VolumeDevices: c.devices, VolumeMounts: c.mounts}
			config, err := b.Container(t.Context(), p, container, in)
			if c.err != "" {
				if err == nil || err.Error() != c.err {
					t.Errorf("%v, want %s", err, c.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, config.Devices, protocmp.Transform()); diff != "" {
				t.Error(diff)
			}
		})
	}
}
