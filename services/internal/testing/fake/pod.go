package fake

import (
	"context"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	kubelettypes "k8s.io/kubelet/pkg/types"
)

// Pod is a pod that StartPod runs.
type Pod struct {
	Namespace, Name, UID string
	// LogDirectory is the folder of the logs, each named after its container.
	LogDirectory string
	// Containers are their names.
	Containers []string
	// Annotations are the sandbox's, and ContainerAnnotations those of each container.
	Annotations, ContainerAnnotations map[string]string
}

// StartPod runs a pod as podsync would have it run, with the kubelet's labels, and returns the id of
// its sandbox and those of its containers by their names.
func (r *Runtime) StartPod(ctx context.Context, p Pod) (sandbox string, containers map[string]string, err error) {
	const image = "image"
	r.AddImage(image)
	client := runtimeapi.NewRuntimeServiceClient(r.Conn())
	labels := func(more ...string) map[string]string {
		m := map[string]string{
			kubelettypes.KubernetesPodUIDLabel:       p.UID,
			kubelettypes.KubernetesPodNameLabel:      p.Name,
			kubelettypes.KubernetesPodNamespaceLabel: p.Namespace,
		}
		for i := 0; i+1 < len(more); i += 2 {
			m[more[i]] = more[i+1]
		}
		return m
	}
	config := &runtimeapi.PodSandboxConfig{
		Metadata: &runtimeapi.PodSandboxMetadata{Name: p.Name, Namespace: p.Namespace, Uid: p.UID},
		Labels:   labels(), LogDirectory: p.LogDirectory, Annotations: p.Annotations,
	}
	made, err := client.RunPodSandbox(ctx, &runtimeapi.RunPodSandboxRequest{Config: config})
	if err != nil {
		return "", nil, err
	}
	containers = map[string]string{}
	for _, name := range p.Containers {
		created, err := client.CreateContainer(ctx, &runtimeapi.CreateContainerRequest{
			PodSandboxId: made.GetPodSandboxId(), SandboxConfig: config,
			Config: &runtimeapi.ContainerConfig{
				Metadata: &runtimeapi.ContainerMetadata{Name: name}, Image: &runtimeapi.ImageSpec{Image: image},
				LogPath: name + ".log", Labels: labels(kubelettypes.KubernetesContainerNameLabel, name),
				Annotations: p.ContainerAnnotations,
			},
		})
		if err != nil {
			return "", nil, err
		}
		if _, err := client.StartContainer(ctx,
			&runtimeapi.StartContainerRequest{ContainerId: created.GetContainerId()}); err != nil {
			return "", nil, err
		}
		containers[name] = created.GetContainerId()
	}
	return made.GetPodSandboxId(), containers, nil
}
