package runtime

import (
	"context"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/microlet/microlet/services/podsync/internal/pod"
)

// usersPatience is how long the runtime may take to show one sandbox.
const usersPatience = 5 * time.Second

// UserNamespaces returns the user namespaces of all pods of which a sandbox or a container runs, as far as the runtime
// reports them. It asks for each sandbox that is not known yet. unread has the pods with a sandbox that the runtime
// does not show, and why.
func (r *Runtime) UserNamespaces(ctx context.Context) (found map[types.UID][]*runtimeapi.UserNamespace,
	unread map[types.UID]error, err error) {
	states, err := r.List(ctx)
	if err != nil {
		return nil, nil, err
	}
	var mu sync.Mutex // of both maps
	found, unread = map[types.UID][]*runtimeapi.UserNamespace{}, map[types.UID]error{}
	take := func(uid types.UID, sandbox *pod.Sandbox, err error) {
		mu.Lock()
		defer mu.Unlock()
		switch {
		case err != nil:
			unread[uid] = err
		case sandbox != nil && sandbox.UserNamespace != nil:
			found[uid] = append(found[uid], sandbox.UserNamespace)
		}
	}
	calls := errgroup.Group{}
	calls.SetLimit(r.opts.ReadConcurrency)
	for uid, state := range states {
		facts := r.known.of(uid)
		for _, listed := range state.Sandboxes {
			if !runs(state, &listed) {
				continue
			}
			if fact, ok := facts.sandboxes[listed.ID]; ok {
				take(uid, &fact, nil)
				continue
			}
			calls.Go(func() error {
				ctx, cancel := context.WithTimeout(ctx, usersPatience)
				defer cancel()
				read, err := r.sandboxStatus(ctx, listed.ID)
				take(uid, read, err)
				return nil
			})
		}
	}
	return found, unread, calls.Wait()
}

// runs reports whether there are processes in a sandbox.
func runs(state *pod.State, sandbox *pod.Sandbox) bool {
	return sandbox.Ready || slices.ContainsFunc(state.Containers, func(c pod.Container) bool {
		return c.SandboxID == sandbox.ID && c.Running()
	})
}
