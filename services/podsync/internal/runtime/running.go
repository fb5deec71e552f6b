package runtime

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	kubelettypes "k8s.io/kubelet/pkg/types"
)

// Running returns the pods of which a sandbox is ready or a container runs, with two calls.
func (r *Runtime) Running(ctx context.Context) (map[types.UID]bool, error) {
	ctx, cancel := context.WithTimeout(ctx, r.opts.Timeout)
	defer cancel()
	sandboxes, err := r.cri.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{Filter: &runtimeapi.PodSandboxFilter{
		State: &runtimeapi.PodSandboxStateValue{State: runtimeapi.PodSandboxState_SANDBOX_READY},
	}})
	if err != nil {
		return nil, fmt.Errorf("list sandboxes: %w", err)
	}
	containers, err := r.cri.ListContainers(ctx, &runtimeapi.ListContainersRequest{Filter: &runtimeapi.ContainerFilter{
		State: &runtimeapi.ContainerStateValue{State: runtimeapi.ContainerState_CONTAINER_RUNNING},
	}})
	if err != nil {
		return nil, fmt.Errorf("list containers: %w", err)
	}
	running := map[types.UID]bool{}
	for _, s := range sandboxes.GetItems() {
		running[types.UID(s.GetLabels()[kubelettypes.KubernetesPodUIDLabel])] = true
	}
	for _, c := range containers.GetContainers() {
		running[types.UID(c.GetLabels()[kubelettypes.KubernetesPodUIDLabel])] = true
	}
	delete(running, "") // sandboxes of others, such as crictl's
	return running, nil
}
