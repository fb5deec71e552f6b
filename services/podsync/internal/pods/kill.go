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

	"github.com/microlet/microlet/services/podsync/internal/cri/runtime"
	"github.com/microlet/microlet/services/podsync/internal/pod"
	"github.com/microlet/microlet/services/podsync/internal/pod/decide"
)

// minGrace is the time that every container gets to shut down, however long its hook runs.
const minGrace = 2 * time.Second

// stopPod stops containers, in their order, and then sandboxes. A container that the runtime does not stop ends with
// its sandbox.
func (w *worker) stopPod(ctx context.Context, p *v1.Pod, s *decide.StopPod) error {
	err := w.kill(ctx, p, s.Containers)
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case errors.Is(err, errCutOff):
		return err // the containers have time left, which the end of their sandbox would take from them
	}
	errs := []error{err}
	for _, id := range s.Sandboxes {
		if err := w.deps.Runtime.StopSandbox(ctx, id); err != nil {
			errs = append(errs, transient("stop the sandbox", err))
			continue
		}
		w.stops.sandboxes[id] = true
	}
	return errors.Join(errs...)
}

// stops are the stops of a pod that have begun. They outlive the syncs that begin them, and belong to the goroutine of
// run.
type stops struct {
	// containers are the containers that are being stopped, by ID.
	containers map[string]*stopping
	// sandboxes are those, by ID, whose network the runtime has taken down for this worker.
	sandboxes map[string]bool
}

func newStops() *stops {
	return &stops{containers: map[string]*stopping{}, sandboxes: map[string]bool{}}
}

// stopping is how far the stop of one container has come. A sync that is canceled or fails must neither begin a second
// grace period nor run a hook again.
type stopping struct {
	began     time.Time
	grace     time.Duration
	announced bool
	hook      *task // nil until the preStop hook has begun
}

// of returns how far the stop of a container has come. A grace period that is shorter than the one before begins now.
func (all *stops) of(k *decide.Kill) *stopping {
	s := all.containers[k.ID]
	switch {
	case s == nil:
		s = &stopping{began: time.Now(), grace: k.Grace}
		all.containers[k.ID] = s
	case k.Grace < s.grace:
		s.began, s.grace = time.Now(), k.Grace
	}
	return s
}

// see forgets what the runtime has no more.
func (all *stops) see(state *pod.State) {
	for id, stop := range all.containers {
		if !mayRun(state, id) {
			stop.end()
			delete(all.containers, id)
		}
	}
	maps.DeleteFunc(all.sandboxes, func(id string, _ bool) bool {
		return !slices.ContainsFunc(state.Sandboxes, func(s pod.Sandbox) bool { return s.ID == id })
	})
}

func mayRun(state *pod.State, id string) bool {
	for i := range state.Containers {
		if c := &state.Containers[i]; c.ID == id {
			return decide.MayRun(c)
		}
	}
	return false
}

// end is for a container that has ended. Its hook, if it still runs, serves nothing any more.
func (s *stopping) end() {
	if s.hook != nil {
		s.hook.cancel()
	}
}

// kill stops containers, all at once except for sidecars, which wait for the containers that they serve.
func (w *worker) kill(ctx context.Context, p *v1.Pod, kills []decide.Kill) error {
	if len(kills) == 0 {
		return nil
	}
	errs := make([]error, len(kills))
	order := newOrder(kills)
	var all sync.WaitGroup
	for i := range kills {
		k, s := &kills[i], w.stops.of(&kills[i])
		all.Go(func() {
			errs[i] = w.killOne(ctx, p, k, s, func(ctx context.Context) error { return order.wait(ctx, i) })
			order.end(i, errs[i])
		})
	}
	all.Wait()
	return errors.Join(errs...)
}

func (w *worker) killOne(ctx context.Context, p *v1.Pod, k *decide.Kill, s *stopping,
	awaitOthers func(context.Context) error) error {
	if !s.announced {
		s.announced = true
		w.deps.containerEvent(p, k.Name, v1.EventTypeNormal, reasonKilling, "%s", k.Message)
	}
	end := s.began.Add(s.grace)
	grace, cancel := context.WithDeadline(ctx, end)
	defer cancel()
	if k.PreStop {
		if s.hook == nil {
			s.hook = w.beginPreStop(ctx, p, k)
		}
		select {
		case <-s.hook.done:
		case <-grace.Done():
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	if err := awaitOthers(grace); err != nil && ctx.Err() != nil {
		return ctx.Err()
	} else if errors.Is(err, errCutOff) {
		return transient("stop container "+k.Name, err)
	}
	err := w.deps.Runtime.StopContainer(ctx, k.ID, max(time.Until(end), minGrace))
	switch {
	case err == nil:
		s.end()
		w.reporter.notice(resultDelay) // others may take long
		return nil
	case runtime.IsUnavailable(err) && time.Now().Before(end):
		return transient("stop container "+k.Name, fmt.Errorf("%w: %w", errCutOff, err))
	default:
		return transient("stop container "+k.Name, err)
	}
}

// errCutOff is a stop that the runtime's absence ended within the grace period. The next sync continues with the rest
// of that period.
var errCutOff = errors.New("the runtime went away within the grace period")

// order has sidecars stop after the pod's containers, the last sidecar first. Init containers neither wait nor are
// waited for. A container that the runtime does not stop runs on, so the later ones wait until the grace period is
// over.
type order struct {
	kills  []decide.Kill
	ends   []chan struct{}
	cutOff []bool // written before the end is closed
}

func newOrder(kills []decide.Kill) *order {
	o := &order{kills: kills, ends: make([]chan struct{}, len(kills)), cutOff: make([]bool, len(kills))}
	for i := range o.ends {
		o.ends[i] = make(chan struct{})
	}
	return o
}

// wait returns when all containers that stop before the i-th have ended, or ctx has.
func (o *order) wait(ctx context.Context, i int) error {
	for j := range o.kills {
		if !before(&o.kills[j], &o.kills[i]) {
			continue
		}
		select {
		case <-o.ends[j]:
			if o.cutOff[j] {
				return fmt.Errorf("%w: container %s is to stop first", errCutOff, o.kills[j].Name)
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

func (o *order) end(i int, err error) {
	o.cutOff[i] = errors.Is(err, errCutOff)
	if err == nil || o.cutOff[i] {
		close(o.ends[i])
	}
}

func before(a, b *decide.Kill) bool { return a.Stage < b.Stage && !a.PlainInit }
