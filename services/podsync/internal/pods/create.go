package pods

import (
	"context"
	"time"
)

// settlePatience is how long the end of a pod waits for a sandbox or container that was being created when the end
// came. A network plugin can take long to give up.
const settlePatience = 10 * time.Second

// create makes a call that brings something into the runtime, and waits for it. If ctx ends first, the call continues:
// a call that is broken off may still have its effect, and nothing would find what it made. settle waits for it then.
func (w *worker) create(ctx context.Context, call func(context.Context) error) error {
	failed := make(chan error, 1)
	c := w.tasks.begin(ctx, func(ctx context.Context) { failed <- call(ctx) }, nil)
	w.creating = c
	select {
	case <-c.done:
		w.creating = nil
		return <-failed
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// settle waits until nothing is being created any more. It breaks off a call that takes too long.
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
