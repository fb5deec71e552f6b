package runtime

import (
	"context"
	"slices"

	"golang.org/x/sync/errgroup"

	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/microlet/microlet/services/podsync/internal/pod"
)

// UserNamespaces returns the user namespaces of all pods of which a sandbox or a container runs, as far as the runtime
// tells them. It asks for each sandbox that is not known yet.
func (r *Runtime) UserNamespaces(ctx context.Context) (map[types.UID][]*runtimeapi.UserNamespace, error) {
	states, err := r.List(ctx)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, r.opts.Timeout)
	defer cancel()
	var sandboxes []pod.Sandbox
	var owners []types.UID
	for uid, state := range states {
		facts := r.known.of(uid)
		for _, listed := range state.Sandboxes {
			if !runs(state, &listed) {
				continue
			}
			if fact, ok := facts.sandboxes[listed.ID]; ok {
				listed = fact
			}
			sandboxes, owners = append(sandboxes, listed), append(owners, uid)
		}
	}
	calls, callCtx := errgroup.WithContext(ctx)
	calls.SetLimit(r.opts.ReadConcurrency)
	for i := range sandboxes {
		if sandboxes[i].UserNamespace != nil {
			continue
		}
		calls.Go(func() error {
			read, err := r.sandboxStatus(callCtx, sandboxes[i].ID)
			if err == nil && read != nil {
				sandboxes[i] = *read
			}
			return err
		})
	}
	if err := calls.Wait(); err != nil {
		return nil, err
	}
	found := map[types.UID][]*runtimeapi.UserNamespace{}
	for i := range sandboxes {
		if users := sandboxes[i].UserNamespace; users != nil {
			found[owners[i]] = append(found[owners[i]], users)
		}
	}
	return found, nil
}

// runs reports whether there are processes in a sandbox.
func runs(state *pod.State, sandbox *pod.Sandbox) bool {
	return sandbox.Ready || slices.ContainsFunc(state.Containers, func(c pod.Container) bool {
		return c.SandboxID == sandbox.ID && c.Running()
	})
}
