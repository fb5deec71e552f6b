package runtime

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	kubelettypes "k8s.io/kubelet/pkg/types"

	"github.com/microlet/microlet/services/podsync/internal/pod"
)

// Digests returns a digest of each pod that the runtime has anything of, from two list
// calls: pod.State.Digest of the same moment would be the same. It is for finding out
// which pods to read.
func (r *Runtime) Digests(ctx context.Context) (map[types.UID]string, error) {
	ctx, cancel := context.WithTimeout(ctx, r.opts.Timeout)
	defer cancel()
	sandboxes, err := r.cri.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
	if err != nil {
		return nil, fmt.Errorf("list sandboxes: %w", err)
	}
	containers, err := r.cri.ListContainers(ctx, &runtimeapi.ListContainersRequest{})
	if err != nil {
		return nil, fmt.Errorf("list containers: %w", err)
	}
	states := map[types.UID]*pod.State{}
	of := func(labels map[string]string) *pod.State {
		uid := types.UID(labels[kubelettypes.KubernetesPodUIDLabel])
		if states[uid] == nil {
			states[uid] = &pod.State{UID: uid}
		}
		return states[uid]
	}
	for _, s := range sandboxes.GetItems() {
		st := of(s.GetLabels())
		st.Sandboxes = append(st.Sandboxes, pod.Sandbox{ID: s.GetId(), Ready: s.GetState() == runtimeapi.PodSandboxState_SANDBOX_READY})
	}
	for _, c := range containers.GetContainers() {
		st := of(c.GetLabels())
		st.Containers = append(st.Containers, pod.Container{ID: c.GetId(), State: c.GetState()})
	}
	digests := make(map[types.UID]string, len(states))
	for uid, st := range states {
		digests[uid] = st.Digest()
	}
	return digests, nil
}
