package pods

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/microlet/microlet/services/internal/logkey"
	"github.com/microlet/microlet/services/internal/tracing"
	"github.com/microlet/microlet/services/podsync/internal/pod"
	"github.com/microlet/microlet/services/podsync/internal/pod/decide"
)

// discardPatience is how long a start waits for the removal of the instance before it that was created and never
// started: the runtime may still start that one.
const discardPatience = 5 * time.Second

// deadContainer is a dead container that counts no more: the runtime removes it sooner or later.
type deadContainer struct {
	name, sandboxID, logPath string
	restartCount             int32
	// keepsLog: only the container goes.
	keepsLog bool
}

// remains are a pod's containers that count no more, by ID. Its methods may be called from any goroutine.
type remains struct {
	mu   sync.Mutex
	dead map[string]deadContainer
}

func newRemains() *remains { return &remains{dead: map[string]deadContainer{}} }

// passOver adds the containers that a decision gives up. They count no more whether or not the runtime can remove them:
// a mount that something else holds can keep a dead container for days.
func (r *remains) passOver(state *pod.State, a *decide.Actions) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range state.Containers {
		c := &state.Containers[i]
		reset := slices.Contains(a.Reset, c.ID)
		if reset || slices.Contains(a.Remove, c.ID) {
			r.dead[c.ID] = deadContainer{c.Name, c.SandboxID, c.LogPath, c.RestartCount, reset}
		}
	}
}

// counting returns the state without the containers that count no more. One of them that runs all the same counts
// again.
func (r *remains) counting(state *pod.State) *pod.State {
	r.mu.Lock()
	defer r.mu.Unlock()
	maps.DeleteFunc(r.dead, func(id string, _ deadContainer) bool {
		return !slices.ContainsFunc(state.Containers, func(c pod.Container) bool {
			return c.ID == id && !decide.MayRun(&c)
		})
	})
	if len(r.dead) == 0 {
		return state
	}
	counts := *state
	counts.Containers = slices.DeleteFunc(slices.Clone(state.Containers), func(c pod.Container) bool {
		_, over := r.dead[c.ID]
		return over
	})
	return &counts
}

// restartCounts returns, by name, the highest restart count of the containers that are still to be removed.
func (r *remains) restartCounts() map[string]int32 {
	r.mu.Lock()
	defer r.mu.Unlock()
	counts := make(map[string]int32, len(r.dead))
	for _, c := range r.dead {
		counts[c.name] = max(counts[c.name], c.restartCount)
	}
	return counts
}

// all returns a copy.
func (r *remains) all() map[string]deadContainer {
	r.mu.Lock()
	defer r.mu.Unlock()
	return maps.Clone(r.dead)
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
func (w *worker) sweep(ctx context.Context, p *v1.Pod, state *pod.State) {
	if !w.sweeping.ended() {
		return
	}
	dead := w.remains.all()
	var replaced []string
	for i := range state.Sandboxes {
		if s := &state.Sandboxes[i]; i > 0 && !s.Ready && !holdsContainer(state, s.ID) && !holdsRemains(dead, s.ID) {
			replaced = append(replaced, s.ID)
		}
	}
	if len(dead)+len(replaced) == 0 {
		return
	}
	w.sweeping = w.tasks.begin(tracing.Outside(ctx), func(ctx context.Context) {
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
	}, nil)
}

// removeContainer removes a dead container. Its log goes first: a container that stays is found again, a log without
// one is not.
func (w *worker) removeContainer(ctx context.Context, id string, c deadContainer) error {
	var failed error
	if c.logPath != "" && !c.keepsLog {
		if err := w.deps.Logs.RemoveContainer(c.logPath); err != nil {
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

func holdsRemains(dead map[string]deadContainer, sandboxID string) bool {
	for _, c := range dead {
		if c.sandboxID == sandboxID {
			return true
		}
	}
	return false
}
