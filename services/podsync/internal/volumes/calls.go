package volumes

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/microlet/microlet/services/internal/keylock"
)

// leave is how long a call may go on after its caller has given up, before it is left behind. A call on a local file
// system ends by then, and the next caller does not meet it.
const leave = time.Second

// calls run what may hang in the kernel where it can be left behind: nothing else ends a call to a file system that
// does not answer. Of the calls on one path one runs at a time, so that a path that hangs costs one goroutine however
// often it is tried.
type calls struct{ paths keylock.Locks[string] }

// do runs f, and returns its error or ctx's.
func (c *calls) do(ctx context.Context, path string, f func() error) error {
	held, err := c.enter(ctx, path)
	if err != nil {
		return err
	}
	result := make(chan error, 1)
	go func() {
		err := f()
		held.Unlock()
		result <- err
	}()
	select {
	case err := <-result:
		return err
	case <-ctx.Done():
	}
	timer := time.NewTimer(leave)
	defer timer.Stop()
	select {
	case err := <-result:
		return errors.Join(err, context.Cause(ctx))
	case <-timer.C:
	}
	held.Hang()
	return fmt.Errorf("given up on %s: %w", path, context.Cause(ctx))
}

// hold keeps all calls from the path until it is released.
func (c *calls) hold(ctx context.Context, path string) (release func(), err error) {
	held, err := c.enter(ctx, path)
	if err != nil {
		return nil, err
	}
	return held.Unlock, nil
}

// enter waits for the other calls on the path.
func (c *calls) enter(ctx context.Context, path string) (*keylock.Held, error) {
	held, err := c.paths.Lock(ctx, path)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return held, nil
}
