package criconfig

import (
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	v1 "k8s.io/api/core/v1"

	resourcesv1 "github.com/microlet/microlet/proto/microlet/resources/v1"
	"github.com/microlet/microlet/services/podsync/internal/volumes"
)

// ContainerInput is what a container's config needs besides the pod and the node.
type ContainerInput struct {
	// RestartCount is how often a container of this name was started before.
	RestartCount int32
	// ImageRef is what the image resolved to; ImageUID and ImageUser are what it runs as.
	ImageRef  string
	ImageUID  *int64
	ImageUser string
	// PodIPs of the pod, primary first; the node's for a pod on the host's network.
	PodIPs []string
	// TargetID is the container whose processes an ephemeral container is to see; empty for none.
	TargetID string
	// Volumes that are mounted, by their name in the pod.
	Volumes map[string]volumes.Mounted
	// ImageVolumes are the images of image volumes, by the volume's name in the pod.
	ImageVolumes map[string]*runtimeapi.ImageSpec
	// Granted is what the container was granted of devices; nil for nothing.
	Granted *resourcesv1.ContainerResources
	// UserNamespace is that of the pod's sandbox, if the pod has hostUsers: false; nil for others.
	UserNamespace *runtimeapi.UserNamespace
}

// container puts the config together from its parts. It is pure.
func container(p *v1.Pod, c *v1.Container, in *ContainerInput, e *environment, mounts []*runtimeapi.Mount,
	n *Node) (*runtimeapi.ContainerConfig, error) {
	security, err := containerSecurity(p, c, in, n)
	if err != nil {
		return nil, err
	}
	if namespaces := security.GetNamespaceOptions(); in.TargetID != "" &&
		namespaces.GetPid() == runtimeapi.NamespaceMode_CONTAINER {
		namespaces.Pid, namespaces.TargetId = runtimeapi.NamespaceMode_TARGET, in.TargetID
	}
	devices, err := volumeDevices(c, in)
	if err != nil {
		return nil, err
	}
	variables, err := e.list()
	if err != nil {
		return nil, err
	}
	command, err := e.expand("command", c.Command)
	if err != nil {
		return nil, err
	}
	args, err := e.expand("args", c.Args)
	if err != nil {
		return nil, err
	}
	annotations, err := containerAnnotations(p, c, in.RestartCount)
	if err != nil {
		return nil, err
	}
	return &runtimeapi.ContainerConfig{
		Metadata:    &runtimeapi.ContainerMetadata{Name: c.Name, Attempt: uint32(in.RestartCount)},
		Image:       &runtimeapi.ImageSpec{Image: in.ImageRef, UserSpecifiedImage: c.Image},
		Command:     command,
		Args:        args,
		WorkingDir:  c.WorkingDir,
		Envs:        variables,
		Mounts:      mounts,
		Devices:     devices,
		Labels:      containerLabels(p, c),
		Annotations: annotations,
		LogPath:     LogPath(c.Name, in.RestartCount),
		Stdin:       c.Stdin,
		StdinOnce:   c.StdinOnce,
		Tty:         c.TTY,
		StopSignal:  stopSignal(c, n),
		Linux: &runtimeapi.LinuxContainerConfig{
			Resources:       containerResources(p, c, n),
			SecurityContext: security,
		},
	}, nil
}
