package pods

import (
	"context"
	"time"

	"github.com/microlet/microlet/services/internal/tracing"
)

// settlePatience is how long the end of a pod waits for a sandbox or container that was
// being created when the end came. A network plugin can take long to give up.
const settlePatience = 10 * time.Second

// creation is a call under way that brings something into the runtime.
type creation struct {
	cancel context.CancelFunc
	done   chan struct{}
}

// create makes a call that brings something into the runtime, and waits for it. When ctx
// ends first the call goes on: one that is broken off may have its effect after all, and
// what it made would be found by nobody. settle waits for it then.
func (w *worker) create(ctx context.Context, call func(context.Context) error) error {
	under, cancel := context.WithCancel(tracing.Carry(w.life, ctx))
	c := &creation{cancel: cancel, done: make(chan struct{})}
	w.creating = c
	failed := make(chan error, 1)
	w.goroutines.Go(func() {
		defer close(c.done)
		defer cancel()
		failed <- call(under)
	})
	select {
	case <-c.done:
		w.creating = nil
		return <-failed
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// settle waits until nothing is being created any more, and breaks off what takes too long.
func (w *worker) settle(ctx context.Context) error {
	c := w.creating
	if c == nil {
		return nil
	}
	patience := time.NewTimer(settlePatience)
	defer patience.Stop()
	select {
	case <-c.done:
	case <-patience.C:
		c.cancel()
		<-c.done
	case <-ctx.Done():
		return ctx.Err()
	}
	w.creating = nil
	return nil
}
