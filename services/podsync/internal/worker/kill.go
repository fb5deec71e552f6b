package worker

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/microlet/microlet/services/podsync/internal/decide"
)

// minGrace is what every container gets to shut down, whatever its hook took of its time.
const minGrace = 2 * time.Second

// stopPod stops containers, each when its turn has come, and then sandboxes.
func (w *worker) stopPod(ctx context.Context, p *v1.Pod, s *decide.StopPod) error {
	if err := w.kill(ctx, p, s.Containers); err != nil {
		return err
	}
	for _, id := range s.Sandboxes {
		if err := w.deps.Runtime.StopSandbox(ctx, id); err != nil {
			return transient("stop the sandbox", err)
		}
		w.stoppedSandboxes[id] = true
	}
	return nil
}

// stopping is how far the stop of one container has come. It outlives the look that began
// it: a look that is overtaken or fails must neither begin a grace period anew nor run a
// hook again.
type stopping struct {
	began  time.Time
	grace  time.Duration
	told   bool
	hooked bool
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

func (w *worker) killOne(ctx context.Context, p *v1.Pod, k *decide.Kill, s *stopping, turn func(context.Context) error) error {
	if !s.told {
		s.told = true
		w.deps.containerEvent(p, k.Name, v1.EventTypeNormal, reasonKilling, "%s", k.Message)
	}
	end := s.began.Add(s.grace)
	grace, cancel := context.WithDeadline(ctx, end)
	defer cancel()
	if k.PreStop && !s.hooked {
		w.preStop(grace, p, k)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		s.hooked = true
	}
	if err := turn(grace); err != nil && ctx.Err() != nil {
		return ctx.Err()
	} else if errors.Is(err, errHeldUp) {
		return transient("stop container "+k.Name, err)
	}
	if err := w.deps.Runtime.StopContainer(ctx, k.ID, max(time.Until(end), minGrace)); err != nil {
		return transient("stop container "+k.Name, err)
	}
	return nil
}

// errHeldUp ends the wait for a container that could not be stopped.
var errHeldUp = errors.New("a container that is to stop before it could not be stopped")

// order lets sidecars stop in their turn: after the pod's containers, the last one first.
// Init containers have no turn and keep nobody waiting.
type order struct {
	kills  []decide.Kill
	ends   []chan struct{}
	failed []bool // written before the end is told
}

func newOrder(kills []decide.Kill) *order {
	o := &order{kills: kills, ends: make([]chan struct{}, len(kills)), failed: make([]bool, len(kills))}
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
			if o.failed[j] {
				return fmt.Errorf("%w: %s", errHeldUp, o.kills[j].Name)
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

func (o *order) end(i int, err error) {
	o.failed[i] = err != nil
	close(o.ends[i])
}

func before(a, b *decide.Kill) bool { return a.Stage < b.Stage && !a.PlainInit }

// preStop runs a container's hook. That it fails is told and changes nothing.
func (w *worker) preStop(ctx context.Context, p *v1.Pod, k *decide.Kill) {
	err := w.deps.Hooks.Run(ctx, w.hookInput(p, k.Spec, k.ID), k.Spec.Lifecycle.PreStop)
	if err == nil || errors.Is(context.Cause(ctx), context.Canceled) || errors.Is(context.Cause(ctx), errOvertaken) {
		return
	}
	// Not the error itself: what a server answered may hold secrets.
	w.deps.containerEvent(p, k.Name, v1.EventTypeWarning, reasonFailedPreStopHook, "PreStopHook failed")
	w.deps.Log.Warn("preStop hook failed", "pod", podName(p), "uid", w.uid, "container", k.Name, "err", err)
}
