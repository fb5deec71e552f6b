package pods

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/microlet/microlet/services/internal/logkey"
	"github.com/microlet/microlet/services/podsync/internal/pod"
	"github.com/microlet/microlet/services/podsync/internal/pod/decide"
)

// discardPatience is how long a start waits for the removal of the instance before it that was created and never
// started: the runtime may still start that one.
const discardPatience = 5 * time.Second

// remains is a dead container that counts no more: the runtime removes it sooner or later.
type remains struct {
	name, sandboxID, logPath string
	restartCount             int32
	// keepsLog: only the container goes.
	keepsLog bool
}

// passOver lets the containers count no more that a decision gives up. Whether the runtime can remove them decides
// nothing: a mount that something else holds can keep a dead container for days.
func (w *worker) passOver(state *pod.State, a *decide.Actions) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for i := range state.Containers {
		c := &state.Containers[i]
		reset := slices.Contains(a.Reset, c.ID)
		if reset || slices.Contains(a.Remove, c.ID) {
			w.remains[c.ID] = remains{c.Name, c.SandboxID, c.LogPath, c.RestartCount, reset}
		}
	}
}

// counting returns the state without the containers that count no more. One of them that runs all the same counts
// again.
func (w *worker) counting(state *pod.State) *pod.State {
	w.mu.Lock()
	defer w.mu.Unlock()
	maps.DeleteFunc(w.remains, func(id string, _ remains) bool {
		return !slices.ContainsFunc(state.Containers, func(c pod.Container) bool {
			return c.ID == id && !decide.MayRun(&c)
		})
	})
	if len(w.remains) == 0 {
		return state
	}
	counts := *state
	counts.Containers = slices.DeleteFunc(slices.Clone(state.Containers), func(c pod.Container) bool {
		_, over := w.remains[c.ID]
		return over
	})
	return &counts
}

// unremovedCounts returns the highest restart count that containers of a name have which are still to be removed.
func (w *worker) unremovedCounts() map[string]int32 {
	w.mu.Lock()
	defer w.mu.Unlock()
	counts := make(map[string]int32, len(w.remains))
	for _, r := range w.remains {
		counts[r.name] = max(counts[r.name], r.restartCount)
	}
	return counts
}

// discard removes the containers that were created and never started, before others start in their place. Others' dead
// instances are left to sweep.
func (w *worker) discard(ctx context.Context, state *pod.State, a *decide.Actions) {
	ctx, cancel := context.WithTimeout(ctx, discardPatience)
	defer cancel()
	for i := range state.Containers {
		c := &state.Containers[i]
		if c.State == runtimeapi.ContainerState_CONTAINER_CREATED && slices.Contains(a.Remove, c.ID) {
			if err := w.deps.Runtime.RemoveContainer(ctx, c.ID); err != nil {
				w.metrics.removalFailures.WithLabelValues("container").Inc()
			}
		}
	}
}

// sweep removes the containers that count no more, and sandboxes that were replaced and hold no container any more. A
// later sync tries again what fails.
func (w *worker) sweep(p *v1.Pod, state *pod.State) {
	if !w.sweeping.ended() {
		return
	}
	w.mu.Lock()
	dead := maps.Clone(w.remains)
	w.mu.Unlock()
	var replaced []string
	for i := range state.Sandboxes {
		if s := &state.Sandboxes[i]; i > 0 && !s.Ready && !holdsContainer(state, s.ID) && !holdsRemains(dead, s.ID) {
			replaced = append(replaced, s.ID)
		}
	}
	if len(dead)+len(replaced) == 0 {
		return
	}
	w.sweeping = w.begin(func(ctx context.Context) {
		var errs []error
		for _, id := range slices.Sorted(maps.Keys(dead)) {
			errs = append(errs, w.removeContainer(ctx, id, dead[id]))
		}
		for _, id := range replaced {
			errs = append(errs, w.counted(ctx, "sandbox", w.deps.Remover.RemoveSandbox(ctx, id)))
		}
		if err := errors.Join(errs...); ctx.Err() == nil && w.history.sweepFails(err) {
			w.deps.Log.Warn("dead containers or replaced sandboxes not removed", logkey.Pod, podName(p),
				logkey.PodUID, w.uid, logkey.Err, err)
		}
	})
}

// removeContainer removes a dead container. Its log goes first: a container that stays is found again, a log without
// one is not.
func (w *worker) removeContainer(ctx context.Context, id string, r remains) error {
	var failed error
	if r.logPath != "" && !r.keepsLog {
		if err := w.deps.Logs.RemoveContainer(r.logPath); err != nil {
			failed = w.counted(ctx, "log", fmt.Errorf("remove the log of container %s: %w", id, err))
		}
	}
	return errors.Join(failed, w.counted(ctx, "container", w.deps.Remover.RemoveContainer(ctx, id)))
}

// counted counts a removal that failed, unless it was broken off.
func (w *worker) counted(ctx context.Context, object string, err error) error {
	if err != nil && ctx.Err() == nil {
		w.metrics.removalFailures.WithLabelValues(object).Inc()
	}
	return err
}

func holdsContainer(state *pod.State, sandboxID string) bool {
	return slices.ContainsFunc(state.Containers, func(c pod.Container) bool { return c.SandboxID == sandboxID })
}

func holdsRemains(dead map[string]remains, sandboxID string) bool {
	for _, r := range dead {
		if r.sandboxID == sandboxID {
			return true
		}
	}
	return false
}
