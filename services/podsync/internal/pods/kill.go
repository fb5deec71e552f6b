package pods

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/microlet/microlet/services/podsync/internal/cri/runtime"
	"github.com/microlet/microlet/services/podsync/internal/pod/decide"
)

// minGrace is what every container gets to shut down, whatever its hook took of its time.
const minGrace = 2 * time.Second

// stopPod stops containers, each when its turn has come, and then sandboxes. A container that the
// runtime would not stop ends with its sandbox.
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
		w.stoppedSandboxes[id] = true
	}
	return errors.Join(errs...)
}

// stopping is how far the stop of one container has come. It outlives the sync that began
// it: a sync that is canceled or fails must neither begin a grace period anew nor run a
// hook again.
type stopping struct {
	began     time.Time
	grace     time.Duration
	announced bool
	hook      *preStop // nil until the hook was begun
}

// stopOf returns how far the stop of a container has come. A grace period that is shorter
// than the one before begins now.
func (w *worker) stopOf(k *decide.Kill) *stopping {
	s := w.stops[k.ID]
	switch {
	case s == nil:
		s = &stopping{began: time.Now(), grace: k.Grace}
		w.stops[k.ID] = s
	case k.Grace < s.grace:
		s.began, s.grace = time.Now(), k.Grace
	}
	return s
}

// kill stops containers, all at once but for sidecars, which wait for the containers that
// they serve.
func (w *worker) kill(ctx context.Context, p *v1.Pod, kills []decide.Kill) error {
	if len(kills) == 0 {
		return nil
	}
	errs := make([]error, len(kills))
	order := newOrder(kills)
	var all sync.WaitGroup
	for i := range kills {
		k, s := &kills[i], w.stopOf(&kills[i])
		all.Go(func() {
			errs[i] = w.killOne(ctx, p, k, s, func(ctx context.Context) error { return order.wait(ctx, i) })
			order.end(i, errs[i])
		})
	}
	all.Wait()
	return errors.Join(errs...)
}

func (w *worker) killOne(ctx context.Context, p *v1.Pod, k *decide.Kill, s *stopping,
	turn func(context.Context) error) error {
	if !s.announced {
		s.announced = true
		w.deps.containerEvent(p, k.Name, v1.EventTypeNormal, reasonKilling, "%s", k.Message)
	}
	end := s.began.Add(s.grace)
	grace, cancel := context.WithDeadline(ctx, end)
	defer cancel()
	if k.PreStop {
		if s.hook == nil {
			s.hook = w.beginPreStop(p, k)
		}
		select {
		case <-s.hook.done:
		case <-grace.Done():
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	if err := turn(grace); err != nil && ctx.Err() != nil {
		return ctx.Err()
	} else if errors.Is(err, errCutOff) {
		return transient("stop container "+k.Name, err)
	}
	err := w.deps.Runtime.StopContainer(ctx, k.ID, max(time.Until(end), minGrace))
	switch {
	case err == nil:
		s.end()
		w.notices.add(resultDelay) // others may take long
		return nil
	case runtime.IsUnavailable(err) && time.Now().Before(end):
		return transient("stop container "+k.Name, fmt.Errorf("%w: %w", errCutOff, err))
	default:
		return transient("stop container "+k.Name, err)
	}
}

// errCutOff is a stop that the runtime's absence ended within the grace period. The next sync
// goes on with what is left of it.
var errCutOff = errors.New("the runtime went away within the grace period")

// order lets sidecars stop in their turn: after the pod's containers, the last one first.
// Init containers have no turn and keep nobody waiting. One that the runtime would not stop runs
// on, so that those after it wait until the grace period is over.
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

// wait returns when all have ended that stop before the i-th, or ctx has.
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
