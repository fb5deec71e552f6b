package leftovers

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	crierrors "k8s.io/cri-api/pkg/errors"

	podlogs "github.com/microlet/microlet/services/podsync/internal/logs"
	"github.com/microlet/microlet/services/podsync/internal/pod"
)

// dead is a container that does not run.
type dead struct {
	*pod.Container
	// kept says that the pod lives and this is the newest instance of the container.
	kept bool
}

// collect removes dead containers beyond the policy, and sandboxes that nothing is in and
// that are not their pod's newest.
func (c *Cleanup) collect(ctx context.Context, states map[types.UID]*pod.State) error {
	errs := []error{c.containers(ctx, states)}
	for uid, state := range states {
		if !c.Pods.Known(uid) {
			continue // no worker, and not removed above: not ours
		}
		for i := range state.Sandboxes {
			s := &state.Sandboxes[i]
			if i == 0 || s.Ready || holdsContainer(state, s.ID) {
				continue
			}
			errs = append(errs, c.removeSandbox(ctx, s.ID))
		}
	}
	return errors.Join(errs...)
}

func holdsContainer(state *pod.State, sandboxID string) bool {
	return slices.ContainsFunc(state.Containers, func(c pod.Container) bool { return c.SandboxID == sandboxID })
}

// containers removes what the policy does not let stay: first of each container, then, if the
// node still has too many, of all alike, and last the oldest of the node.
func (c *Cleanup) containers(ctx context.Context, states map[types.UID]*pod.State) error {
	units := c.dead(states)
	var errs []error
	limit := func(most int) {
		for i, unit := range units {
			if most >= 0 && len(unit) > most {
				left, err := c.removeOldest(ctx, unit, len(unit)-most)
				units[i] = left
				errs = append(errs, err)
			}
		}
	}
	count := func() (n int) {
		for _, unit := range units {
			n += len(unit)
		}
		return n
	}
	limit(c.Policy.MaxPerContainer)
	if most := c.Policy.MaxContainers; most >= 0 && count() > most {
		limit(max(most/len(units), 1))
		if n := count(); n > most {
			all := slices.Concat(units...)
			slices.SortStableFunc(all, func(a, b dead) int { return b.Created.Compare(a.Created) })
			_, err := c.removeOldest(ctx, all, n-most)
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// dead returns the dead containers that are old enough, newest first, of one container of one
// pod each.
func (c *Cleanup) dead(states map[types.UID]*pod.State) [][]dead {
	var units [][]dead
	for uid, state := range states {
		if !c.Pods.Known(uid) {
			continue
		}
		lives := !c.Pods.Ended(uid)
		place := map[string]int{}
		seen := map[string]bool{}
		for i := range state.Containers {
			container := &state.Containers[i]
			newest := !seen[container.Name]
			seen[container.Name] = true
			if container.Running() || time.Since(container.Created) < c.Policy.MinAge {
				continue
			}
			at, known := place[container.Name]
			if !known {
				at = len(units)
				place[container.Name] = at
				units = append(units, nil)
			}
			units[at] = append(units[at], dead{container, newest && lives})
		}
	}
	return units
}

// removeOldest removes n of the containers, from the end, and returns those that are left.
func (c *Cleanup) removeOldest(ctx context.Context, list []dead, n int) ([]dead, error) {
	var errs []error
	var left []dead
	for i := len(list) - 1; i >= 0; i-- {
		if n <= 0 || list[i].kept {
			left = append(left, list[i])
			continue
		}
		n--
		if err := c.removeContainer(ctx, list[i].Container); err != nil {
			errs = append(errs, err)
		}
	}
	slices.Reverse(left)
	return left, errors.Join(errs...)
}

// removeContainer removes a dead container. Its logs go first: a container that is still
// there is found again in the next round, a log without one is not. One that is behind a link stays.
func (c *Cleanup) removeContainer(ctx context.Context, container *pod.Container) error {
	ctx, cancel := context.WithTimeout(ctx, podTimeout)
	defer cancel()
	if mayRun(container) {
		if err := c.Runtime.StopContainer(ctx, container.ID, orphanGrace); err != nil {
			return fmt.Errorf("stop container %s: %w", container.ID, err)
		}
	}
	path, err := c.Runtime.LogPath(ctx, container.ID)
	if crierrors.IsNotFound(err) {
		return nil // its pod's worker has removed it since the list was read, and its log with it
	}
	if err != nil {
		return fmt.Errorf("log of container %s: %w", container.ID, err)
	}
	var logs error
	if path != "" {
		if logs = c.Logs.RemoveContainer(path); logs != nil {
			logs = fmt.Errorf("log of container %s: %w", container.ID, logs)
		}
		if logs != nil && !podlogs.IsElsewhere(logs) {
			return logs
		}
	}
	if err := c.Runtime.RemoveContainer(ctx, container.ID); err != nil {
		return errors.Join(logs, fmt.Errorf("remove container %s: %w", container.ID, err))
	}
	c.Metrics.removed.WithLabelValues("container").Inc()
	return logs
}

func (c *Cleanup) removeSandbox(ctx context.Context, id string) error {
	ctx, cancel := context.WithTimeout(ctx, podTimeout)
	defer cancel()
	// Stopped although it is not ready: its network may still be there.
	if err := c.Runtime.StopSandbox(ctx, id); err != nil {
		return fmt.Errorf("stop sandbox %s: %w", id, err)
	}
	if err := c.Runtime.RemoveSandbox(ctx, id); err != nil {
		return fmt.Errorf("remove sandbox %s: %w", id, err)
	}
	c.Metrics.removed.WithLabelValues("sandbox").Inc()
	return nil
}

// mayRun reports whether a container has a process, or might have one.
func mayRun(c *pod.Container) bool {
	return c.Running() || c.State == runtimeapi.ContainerState_CONTAINER_UNKNOWN
}

// each does something with pods, some at one time and each within its own deadline, and returns
// those that it was done with.
func (c *Cleanup) each(ctx context.Context, states []*pod.State,
	do func(context.Context, *pod.State) error) ([]*pod.State, error) {
	var mu sync.Mutex
	var done []*pod.State
	var errs []error
	var all sync.WaitGroup
	places := make(chan struct{}, atOnce)
	for _, state := range states {
		places <- struct{}{}
		all.Go(func() {
			defer func() { <-places }()
			ctx, cancel := context.WithTimeout(ctx, podTimeout)
			defer cancel()
			err := do(ctx, state)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				errs = append(errs, fmt.Errorf("pod %s: %w", state.UID, err))
				return
			}
			done = append(done, state)
		})
	}
	all.Wait()
	return done, errors.Join(errs...)
}
