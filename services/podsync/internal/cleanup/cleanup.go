// Package cleanup finds and removes what no pod of this node owns any longer.
//
// Inputs: what the runtime, the cgroup tree and the folders hold; which pods have
// workers. It runs only after every pod source has been heard (design rule 3), at once
// then and each minute from there. Guarantees: what belongs to a pod with a worker is
// never touched, since the list is read before the workers are asked; one thing that
// cannot be removed is told and holds up no other.
package cleanup

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/microlet/microlet/services/podsync/internal/pod"
	"github.com/microlet/microlet/services/podsync/internal/podlogs"
)

// Times of the clean-up.
const (
	// Period between two runs.
	Period = time.Minute
	// orphanGrace is how long a container gets whose pod nobody wants.
	orphanGrace = time.Second
	timeout     = 2 * time.Minute
)

// Runtime is what clean-up asks of the container runtime.
type Runtime interface {
	States(ctx context.Context) (map[types.UID]*pod.State, error)
	StopContainer(ctx context.Context, id string, grace time.Duration) error
	RemoveContainer(ctx context.Context, id string) error
	StopSandbox(ctx context.Context, id string) error
	RemoveSandbox(ctx context.Context, id string) error
}

// Remover removes what the runtime has of a pod.
type Remover struct{ Runtime Runtime }

// Remove stops what still runs, and removes containers and sandboxes.
func (r Remover) Remove(ctx context.Context, state *pod.State) error {
	for i := range state.Containers {
		c := &state.Containers[i]
		if c.Running() {
			if err := r.Runtime.StopContainer(ctx, c.ID, orphanGrace); err != nil {
				return fmt.Errorf("stop container %s: %w", c.ID, err)
			}
		}
		if err := r.Runtime.RemoveContainer(ctx, c.ID); err != nil {
			return fmt.Errorf("remove container %s: %w", c.ID, err)
		}
	}
	for i := range state.Sandboxes {
		id := state.Sandboxes[i].ID
		if err := r.Runtime.StopSandbox(ctx, id); err != nil {
			return fmt.Errorf("stop sandbox %s: %w", id, err)
		}
		if err := r.Runtime.RemoveSandbox(ctx, id); err != nil {
			return fmt.Errorf("remove sandbox %s: %w", id, err)
		}
	}
	return nil
}

// Volumes unmounts pods' volumes, and lists the pods that have a folder.
type Volumes interface {
	Orphans() ([]types.UID, error)
	Unmount(ctx context.Context, uid types.UID) error
}

// Cgroups lists and removes pods' cgroups.
type Cgroups interface {
	Pods() (map[types.UID]string, error)
	RemovePod(ctx context.Context, uid types.UID) error
}

// Cleanup is the loop.
type Cleanup struct {
	Runtime Runtime
	Volumes Volumes
	Cgroups Cgroups
	Logs    podlogs.Folders
	// Known says whether a pod has a worker.
	Known func(types.UID) bool
	Log   *slog.Logger
}

// Run waits for the sources, and then cleans up until ctx ends.
func (c *Cleanup) Run(ctx context.Context, synced <-chan struct{}) error {
	select {
	case <-ctx.Done():
		return nil
	case <-synced:
	}
	ticker := time.NewTicker(Period)
	defer ticker.Stop()
	for {
		if err := c.once(ctx); err != nil && ctx.Err() == nil {
			c.Log.Error("clean-up incomplete", "err", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

func (c *Cleanup) once(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	states, err := c.Runtime.States(ctx)
	if err != nil {
		return fmt.Errorf("list the runtime's pods: %w", err) // and nothing else is safe to conclude
	}
	var errs []error
	for uid, state := range states {
		if c.Known(uid) || foreign(state) {
			continue
		}
		c.Log.Info("removing a pod that no source wants", "pod", state.Namespace+"/"+state.Name, "uid", uid)
		if err := (Remover{c.Runtime}).Remove(ctx, state); err != nil {
			errs = append(errs, fmt.Errorf("pod %s: %w", uid, err))
			continue
		}
		delete(states, uid)
	}
	errs = append(errs, c.folders(ctx, states), c.cgroups(ctx, states))
	return errors.Join(errs...)
}

// foreign says whether the pod came from a source that this node agent does not read:
// a static pod of the kubelet before it. That no source here names it proves nothing.
func foreign(state *pod.State) bool {
	for i := range state.Sandboxes {
		if source := state.Sandboxes[i].Annotations["kubernetes.io/config.source"]; source != "" && source != "api" {
			return true
		}
	}
	return false
}

// orphan says whether nobody needs what is left of a pod.
func (c *Cleanup) orphan(uid types.UID, states map[types.UID]*pod.State) bool {
	_, runs := states[uid]
	return !runs && !c.Known(uid)
}

func (c *Cleanup) folders(ctx context.Context, states map[types.UID]*pod.State) error {
	pods, err := c.Volumes.Orphans()
	errs := []error{err}
	for _, uid := range pods {
		if c.orphan(uid, states) {
			errs = append(errs, c.Volumes.Unmount(ctx, uid))
		}
	}
	logs, err := c.Logs.List()
	errs = append(errs, err)
	for _, p := range logs {
		if c.orphan(p.UID, states) {
			errs = append(errs, c.Logs.Remove(p))
		}
	}
	return errors.Join(errs...)
}

func (c *Cleanup) cgroups(ctx context.Context, states map[types.UID]*pod.State) error {
	pods, err := c.Cgroups.Pods()
	errs := []error{err}
	for uid := range pods {
		if c.orphan(uid, states) {
			errs = append(errs, c.Cgroups.RemovePod(ctx, uid))
		}
	}
	return errors.Join(errs...)
}
