package runtime

import (
	"context"

	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	kubelettypes "k8s.io/kubelet/pkg/types"
)

// Running returns the pods of which a sandbox is ready or a container runs, by two lists.
func (r *Runtime) Running(ctx context.Context) (map[types.UID]bool, error) {
	sandboxes, containers, err := r.list(ctx, &runtimeapi.PodSandboxFilter{
		State: &runtimeapi.PodSandboxStateValue{State: runtimeapi.PodSandboxState_SANDBOX_READY},
	}, &runtimeapi.ContainerFilter{
		State: &runtimeapi.ContainerStateValue{State: runtimeapi.ContainerState_CONTAINER_RUNNING},
	})
	if err != nil {
		return nil, err
	}
	running := map[types.UID]bool{}
	for _, s := range sandboxes {
		running[types.UID(s.GetLabels()[kubelettypes.KubernetesPodUIDLabel])] = true
	}
	for _, c := range containers {
		running[types.UID(c.GetLabels()[kubelettypes.KubernetesPodUIDLabel])] = true
	}
	delete(running, "") // sandboxes of others, such as crictl's
	return running, nil
}
