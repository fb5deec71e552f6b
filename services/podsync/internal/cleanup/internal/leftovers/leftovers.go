// Package leftovers removes sandboxes, containers, folders, mounts, logs and cgroups that no pod needs.
//
// It runs once every pod source has delivered its list, then every minute, and soon after a container or sandbox
// without a worker is seen. A round makes two list calls. It asks for a log path only if it removes the log. The
// newest instance of each container of an existing pod stays, with its log, because kubectl logs --previous and
// package decide need it. Of a pod with a worker, it otherwise touches only what is dead, because it reads the list
// before it asks the workers. An error is reported and does not stop the round. Volumes are unmounted beside the
// rounds, and each pod's beside those of the others, because one that hangs takes minutes each time.
package leftovers

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/microlet/microlet/services/internal/logkey"
	"github.com/microlet/microlet/services/internal/tracing"
	"github.com/microlet/microlet/services/podsync/internal/logs"
	"github.com/microlet/microlet/services/podsync/internal/pod"
)

// Times of the clean-up.
const (
	// Period between two rounds.
	Period = time.Minute
	// soon is how long a round waits that was asked for, and gap what is at least between it and
	// the one before, so that many signs make one round.
	soon = time.Second
	gap  = 5 * time.Second
	// orphanGrace is the grace period of a container if no source wants its pod.
	orphanGrace = time.Second
	timeout     = 2 * time.Minute
	// podTimeout is what one pod's removal may take; the others do not wait for it.
	podTimeout = time.Minute
	// atOnce is how many pods are removed at one time.
	atOnce = 4
)

// Runtime is what clean-up asks of the container runtime.
type Runtime interface {
	// List returns ids, ages and whether something runs, in a fixed number of calls.
	List(ctx context.Context) (map[types.UID]*pod.State, error)
	LogPath(ctx context.Context, id string) (string, error)
	StopContainer(ctx context.Context, id string, grace time.Duration) error
	RemoveContainer(ctx context.Context, id string) error
	StopSandbox(ctx context.Context, id string) error
	RemoveSandbox(ctx context.Context, id string) error
}

// Remover removes what the runtime has of a pod.
type Remover struct {
	Runtime
	// PreStop runs the hook of a container that runs, if it has one; nil runs none.
	PreStop func(ctx context.Context, state *pod.State, c *pod.Container)
}

// Remove stops what still runs, and removes containers and sandboxes. It goes as far as it can:
// a container that cannot be stopped ends with its sandbox, and is removed then. A sandbox that
// cannot be stopped stays, since its network is still there.
func (r Remover) Remove(ctx context.Context, state *pod.State) error {
	stopped, err := r.stop(ctx, state)
	errs := []error{err}
	for i := range state.Containers {
		id := state.Containers[i].ID
		if err := r.Runtime.RemoveContainer(ctx, id); err != nil {
			errs = append(errs, fmt.Errorf("remove container %s: %w", id, err))
		}
	}
	for _, id := range stopped {
		if err := r.Runtime.RemoveSandbox(ctx, id); err != nil {
			errs = append(errs, fmt.Errorf("remove sandbox %s: %w", id, err))
		}
	}
	return errors.Join(errs...)
}

// stop ends what runs, first the containers and then the sandboxes, and returns the sandboxes
// that have stopped.
func (r Remover) stop(ctx context.Context, state *pod.State) (sandboxes []string, err error) {
	errs := []error{r.stopContainers(ctx, state)}
	for i := range state.Sandboxes {
		id := state.Sandboxes[i].ID
		if err := r.Runtime.StopSandbox(ctx, id); err != nil {
			errs = append(errs, fmt.Errorf("stop sandbox %s: %w", id, err))
			continue
		}
		sandboxes = append(sandboxes, id)
	}
	return sandboxes, errors.Join(errs...)
}

// stopContainers stops the containers that may run, all at once and within half of the pod's
// time: a stop that hangs must leave some for the sandbox.
func (r Remover) stopContainers(ctx context.Context, state *pod.State) error {
	ctx, cancel := context.WithTimeout(ctx, podTimeout/2)
	defer cancel()
	errs := make([]error, len(state.Containers))
	var all sync.WaitGroup
	for i := range state.Containers {
		c := &state.Containers[i]
		if !mayRun(c) {
			continue
		}
		all.Go(func() {
			if r.PreStop != nil {
				hook, cancel := context.WithTimeout(ctx, orphanGrace)
				r.PreStop(hook, state, c)
				cancel()
			}
			if err := r.Runtime.StopContainer(ctx, c.ID, orphanGrace); err != nil {
				errs[i] = fmt.Errorf("stop container %s: %w", c.ID, err)
			}
		})
	}
	all.Wait()
	return errors.Join(errs...)
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

// Pods knows which pods have workers.
type Pods interface {
	// Known reports whether a pod has a worker.
	Known(uid types.UID) bool
	// Ended reports whether a pod has a worker that has seen everything of it stopped for good.
	Ended(uid types.UID) bool
}

// Policy says how many dead containers stay; its fields are the kubelet's flags.
type Policy struct {
	// MinAge is how old a container must be to be removed (--minimum-container-ttl-duration); 0 is no limit.
	MinAge time.Duration
	// MaxPerContainer is how many dead instances of one container stay
	// (--maximum-dead-containers-per-container); negative is no limit.
	MaxPerContainer int
	// MaxContainers is how many dead containers the node keeps (--maximum-dead-containers);
	// negative is no limit. The newest instances of living pods stay all the same.
	MaxContainers int
}

// Cleanup is the loop. Make it with New.
type Cleanup struct {
	Options
	unmounts *unmounts
}

// Options of a Cleanup; all are needed but Failed, PreStop and Tracer.
type Options struct {
	Runtime Runtime
	Volumes Volumes
	Cgroups Cgroups
	Logs    logs.Folders
	Pods    Pods
	// Orphans asks for a round before its time: something runs, or may run, of which no worker knows.
	Orphans <-chan struct{}
	Policy  Policy
	// Failed is called when dead containers could not be collected: the event ContainerGCFailed.
	Failed func(error)
	// PreStop runs the hook of a running container of an unwanted pod; nil runs none.
	PreStop func(ctx context.Context, state *pod.State, c *pod.Container)
	// Tracer begins a trace with each round; nil if the node does not trace.
	Tracer  *tracing.Tracer
	Log     *slog.Logger
	Metrics *Metrics
}

// spanName is the kubelet's name of a collection of dead containers in traces.
const spanName = "Containers/GarbageCollect"

// New returns a clean-up that does nothing until Run runs.
func New(o Options) *Cleanup { return &Cleanup{Options: o, unmounts: newUnmounts()} }

// Run waits for the sources, and then cleans up until ctx ends. It waits for the unmounts that are under way then.
func (c *Cleanup) Run(ctx context.Context, synced <-chan struct{}) error {
	defer c.unmounts.wait()
	select {
	case <-ctx.Done():
		return nil
	case <-synced:
	}
	timer := time.NewTimer(Period)
	defer timer.Stop()
	for {
		if err := c.once(ctx); err != nil && ctx.Err() == nil {
			c.Log.Error("clean-up incomplete", logkey.Err, err)
		}
		timer.Reset(Period)
		ended := time.Now()
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
		case <-c.Orphans:
			select {
			case <-ctx.Done():
				return nil
			case <-time.After(max(soon, gap-time.Since(ended))):
			}
		}
	}
}

// once is one round. What it begins to unmount goes on after it, until life ends.
func (c *Cleanup) once(life context.Context) (err error) {
	life, span := c.Tracer.Begin(life, spanName)
	defer func() { span.End(err) }()
	ctx, cancel := context.WithTimeout(life, timeout)
	defer cancel()
	states, err := c.Runtime.List(ctx)
	if err != nil {
		c.failed(err)
		return fmt.Errorf("list the runtime's pods: %w", err) // and nothing else is safe to conclude
	}
	err = errors.Join(c.orphans(ctx, states), c.strays(ctx, states))
	collected := c.collect(ctx, states)
	if collected != nil {
		c.failed(collected)
	}
	return errors.Join(err, collected, c.volumes(life, states), c.logs(states), c.cgroups(ctx, states))
}

func (c *Cleanup) failed(err error) {
	if c.Failed != nil {
		c.Failed(err)
	}
}

// orphans removes the pods that no source wants, and takes those that are gone out of states.
func (c *Cleanup) orphans(ctx context.Context, states map[types.UID]*pod.State) error {
	var wanted []*pod.State
	for uid, state := range states {
		if !c.Pods.Known(uid) {
			wanted = append(wanted, state)
		}
	}
	gone, err := c.each(ctx, wanted, func(ctx context.Context, state *pod.State) error {
		c.Log.Info("removing a pod that no source wants", logkey.Pod, state.Namespace+"/"+state.Name,
			logkey.PodUID, state.UID)
		c.Metrics.orphans.Inc()
		return Remover{c.Runtime, c.PreStop}.Remove(ctx, state)
	})
	for _, state := range gone {
		delete(states, state.UID)
	}
	return err
}

// strays stops what runs of pods that have ended: a sandbox that the runtime finished creating after its pod was
// deleted and the creation given up.
func (c *Cleanup) strays(ctx context.Context, states map[types.UID]*pod.State) error {
	var running []*pod.State
	for uid, state := range states {
		if (state.AnyRunning() || anyReady(state)) && c.Pods.Ended(uid) {
			running = append(running, state)
		}
	}
	_, err := c.each(ctx, running, func(ctx context.Context, state *pod.State) error {
		c.Log.Info("stopping what runs of a pod that has ended", logkey.Pod, state.Namespace+"/"+state.Name,
			logkey.PodUID, state.UID)
		c.Metrics.orphans.Inc()
		_, err := Remover{Runtime: c.Runtime}.stop(ctx, state)
		return err
	})
	return err
}

func anyReady(state *pod.State) bool {
	for i := range state.Sandboxes {
		if state.Sandboxes[i].Ready {
			return true
		}
	}
	return false
}

// orphan reports whether what is left of a pod is not needed.
func (c *Cleanup) orphan(uid types.UID, states map[types.UID]*pod.State) bool {
	_, runs := states[uid]
	return !runs && !c.Pods.Known(uid)
}

// logs removes the log folders of removed pods, and links to removed logs.
func (c *Cleanup) logs(states map[types.UID]*pod.State) error {
	pods, err := c.Logs.List()
	errs := []error{err}
	for _, p := range pods {
		if c.orphan(p.UID, states) {
			errs = append(errs, c.Logs.Remove(p))
			c.Metrics.removed.WithLabelValues("log folder").Inc()
		}
	}
	running := map[string]bool{}
	for _, state := range states {
		for i := range state.Containers {
			if mayRun(&state.Containers[i]) {
				running[state.Containers[i].ID] = true
			}
		}
	}
	links, err := c.Logs.RemoveDeadLinks(func(id string) bool { return running[id] })
	c.Metrics.removed.WithLabelValues("log link").Add(float64(links))
	return errors.Join(append(errs, err)...)
}

func (c *Cleanup) cgroups(ctx context.Context, states map[types.UID]*pod.State) error {
	pods, err := c.Cgroups.Pods()
	errs := []error{err}
	for uid := range pods {
		if c.orphan(uid, states) {
			errs = append(errs, c.Cgroups.RemovePod(ctx, uid))
			c.Metrics.removed.WithLabelValues("cgroup").Inc()
		}
	}
	return errors.Join(errs...)
}
