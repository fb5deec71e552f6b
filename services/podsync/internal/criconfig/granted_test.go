package criconfig

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	v1 "k8s.io/api/core/v1"

	resourcesv1 "github.com/microlet/microlet/proto/microlet/resources/v1"
	"github.com/microlet/microlet/services/podsync/internal/volumes"
)

// What device plugins set comes first, and what the pod and the node agent set replaces it.
func TestAContainerWithDevices(t *testing.T) {
	b, p := builder(t), plainPod()
	if err := b.Prepare(p); err != nil {
		t.Fatal(err)
	}
	c := &v1.Container{
		Name: "c", Args: []string{"$(GPU)", "$(OWN)"},
		Env:           []v1.EnvVar{{Name: "OWN", Value: "mine"}, {Name: "OTHER", Value: "$(GPU)"}},
		VolumeDevices: []v1.VolumeDevice{{Name: "disk", DevicePath: "/dev/disk"}},
		VolumeMounts:  []v1.VolumeMount{{Name: "files", MountPath: "/files"}},
	}
	config, err := b.Container(t.Context(), p, c, ContainerInput{
		Volumes: map[string]volumes.Mounted{"disk": {Device: "/pods/u/disk"}, "files": {HostPath: "/host/files"}},
		Granted: &resourcesv1.ContainerResources{
			Name: "c", Env: map[string]string{"OWN": "plugin", "GPU": "0"},
			Mounts: []*resourcesv1.ContainerResources_Mount{
				{HostPath: "/usr/lib/gpu", ContainerPath: "/opt/gpu", ReadOnly: true},
			},
			DeviceNodes: []*resourcesv1.ContainerResources_DeviceNode{
				{HostPath: "/dev/gpu0", ContainerPath: "/dev/gpu", Permissions: "rw"},
			},
			Annotations: map[string]string{"gpu": "0", "io.kubernetes.container.hash": "plugin"},
			CdiDevices:  []string{"example.com/gpu=0"},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	devices := []*runtimeapi.Device{
		{HostPath: "/dev/gpu0", ContainerPath: "/dev/gpu", Permissions: "rw"},
		{HostPath: "/pods/u/disk", ContainerPath: "/dev/disk", Permissions: "mrw"},
	}
	mounts := []*runtimeapi.Mount{
		{HostPath: "/usr/lib/gpu", ContainerPath: "/opt/gpu", Readonly: true},
		{HostPath: "/host/files", ContainerPath: "/files"},
	}
	cdi := []*runtimeapi.CDIDevice{{Name: "example.com/gpu=0"}}
	for _, diff := range []string{
		cmp.Diff(devices, config.Devices, protocmp.Transform()), cmp.Diff(mounts, config.Mounts[:2], protocmp.Transform()),
		cmp.Diff(cdi, config.CDIDevices, protocmp.Transform()), cmp.Diff([]string{"0", "mine"}, config.Args),
	} {
		if diff != "" {
			t.Error(diff)
		}
	}
	env := map[string]string{}
	for _, e := range config.Envs {
		env[e.GetKey()] = string(e.GetValue())
	}
	// As with the kubelet, the variables of a pod do not refer to those of a plugin.
	if config.Envs[0].GetKey() != "GPU" || env["OWN"] != "mine" || env["OTHER"] != "$(GPU)" {
		t.Errorf("variables: %v", config.Envs)
	}
	if config.Annotations["gpu"] != "0" || config.Annotations["io.kubernetes.container.hash"] == "plugin" {
		t.Errorf("annotations: %v", config.Annotations)
	}
}

func TestGrantsThatAreRefused(t *testing.T) {
	b, p := builder(t), plainPod()
	b.Private = func(*v1.Pod) []string { return []string{"/run/microlet", "/var/run/microlet"} }
	if err := b.Prepare(p); err != nil {
		t.Fatal(err)
	}
	mount := func(host, inContainer string) *resourcesv1.ContainerResources {
		return &resourcesv1.ContainerResources{Mounts: []*resourcesv1.ContainerResources_Mount{
			{HostPath: host, ContainerPath: inContainer},
		}}
	}
	device := func(host, permissions string) *resourcesv1.ContainerResources {
		return &resourcesv1.ContainerResources{DeviceNodes: []*resourcesv1.ContainerResources_DeviceNode{
			{HostPath: host, ContainerPath: "/dev/x", Permissions: permissions},
		}}
	}
	many := &resourcesv1.ContainerResources{}
	for range maxGrantedMounts + 1 {
		many.Mounts = append(many.Mounts, &resourcesv1.ContainerResources_Mount{})
	}
	for want, granted := range map[string]*resourcesv1.ContainerResources{
		"1025 mounts: at most 1024":                         many,
		`a mount of "lib" at "/lib": both must be absolute`: mount("lib", "/lib"),
		`a mount of "/run/microlet/sock", which is the`:     mount("/run/microlet/sock", "/lib"),
		`a mount of "/a/../run/microlet", which is the`:     mount("/a/../run/microlet", "/lib"),
		`a mount of "/var/run//microlet", which is the`:     mount("/var/run//microlet", "/lib"),
		`a device of "/run/microlet/x", which is the`:       device("/run/microlet/x", "r"),
		`device "/dev/x" with permissions "rx": they are`:   device("/dev/x", "rx"),
		`the CDI device ""`:                                 {CdiDevices: []string{""}},
		`the environment variable "A=B"`:                    {Env: map[string]string{"A=B": ""}},
		`the annotation "a" of 8193 bytes`:                  {Annotations: map[string]string{"a": strings.Repeat("x", 8193)}},
		"variable A of a device plugin":                     {Env: map[string]string{"A": strings.Repeat("x", 8<<20)}},
	} {
		_, err := b.Container(t.Context(), p, &v1.Container{Name: "c"}, ContainerInput{Granted: granted})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	for _, granted := range []*resourcesv1.ContainerResources{
		mount("/run/microletx", "/lib"), mount("/usr/lib/../lib64", "/opt/../lib"),
	} {
		if _, err := b.Container(t.Context(), p, &v1.Container{Name: "c"}, ContainerInput{Granted: granted}); err != nil {
			t.Error(err)
		}
	}
}
