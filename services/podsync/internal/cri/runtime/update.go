package runtime

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// UpdateContainer gives a container that runs other resources. A limit of -1 is none, and what is 0 stays.
func (r *Runtime) UpdateContainer(ctx context.Context, uid types.UID, id string,
	resources *runtimeapi.LinuxContainerResources) error {
	ctx, cancel := context.WithTimeout(ctx, r.opts.Timeout)
	defer cancel()
	_, err := r.cri.UpdateContainerResources(ctx, &runtimeapi.UpdateContainerResourcesRequest{
		ContainerId: id, Linux: resources,
	})
	r.known.forgetRunning(uid, id) // also after an error: the call may have had its effect
	if err != nil {
		return fmt.Errorf("update the resources of container %s: %w", id, err)
	}
	return nil
}

// UpdateSandbox passes on to the runtime what a pod has as a whole, before its cgroup has it. A runtime that does not
// know the call is fine.
func (r *Runtime) UpdateSandbox(ctx context.Context, id string,
	resources, overhead *runtimeapi.LinuxContainerResources) error {
	ctx, cancel := context.WithTimeout(ctx, r.opts.Timeout)
	defer cancel()
	_, err := r.cri.UpdatePodSandboxResources(ctx, &runtimeapi.UpdatePodSandboxResourcesRequest{
		PodSandboxId: id, Resources: resources, Overhead: overhead,
	})
	if err == nil || isMissing(err) {
		return nil
	}
	return fmt.Errorf("update the resources of sandbox %s: %w", id, err)
}

// isMissing reports whether the runtime lacks a call. containerd 2.2 says so in words alone.
func isMissing(err error) bool {
	return IsUnimplemented(err) ||
		status.Code(err) == codes.Unknown && strings.Contains(status.Convert(err).Message(), "not implemented")
}

// forgetRunning has the next read ask for a container, whose resources have changed. A read that is under way may have
// asked before.
func (k *known) forgetRunning(uid types.UID, id string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	f := k.pods[uid]
	if f == nil {
		return
	}
	// The maps are shared with those who read.
	changed := &podFacts{sandboxes: f.sandboxes, containers: maps.Clone(f.containers), updated: maps.Clone(f.updated)}
	delete(changed.containers, id)
	changed.noteUpdated(id, time.Now())
	k.pods[uid] = changed
}
