package volumes

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// leave is how long a call that is no longer wanted may go on before it is left behind: one
// on a local file system ends by then, and nobody else has to reckon with it.
const leave = time.Second

// calls run what may hang in the kernel where it can be left behind: nothing else ends a call
// to a file system that does not answer. Of the calls on one path one runs at a time, so that
// a path that hangs costs one goroutine however often it is tried.
type calls struct {
	mu    sync.Mutex
	under map[string]*call
}

type call struct {
	began time.Time
	done  chan struct{}
	// left: nobody waits for it any more.
	left bool
}

// do runs f, and returns its error or ctx's.
func (c *calls) do(ctx context.Context, path string, f func() error) error {
	own, err := c.enter(ctx, path)
	if err != nil {
		return err
	}
	result := make(chan error, 1)
	go func() {
		result <- f()
		c.exit(path, own)
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
	c.mu.Lock()
	own.left = true
	c.mu.Unlock()
	return fmt.Errorf("given up on %s: %w", path, context.Cause(ctx))
}

// hold keeps all calls from the path until it is released.
func (c *calls) hold(ctx context.Context, path string) (release func(), err error) {
	own, err := c.enter(ctx, path)
	if err != nil {
		return nil, err
	}
	return func() { c.exit(path, own) }, nil
}

func (c *calls) exit(path string, own *call) {
	c.mu.Lock()
	delete(c.under, path)
	c.mu.Unlock()
	close(own.done)
}

// enter waits for its turn on the path.
func (c *calls) enter(ctx context.Context, path string) (*call, error) {
	for {
		c.mu.Lock()
		before := c.under[path]
		if before == nil {
			own := &call{began: time.Now(), done: make(chan struct{})}
			if c.under == nil {
				c.under = map[string]*call{}
			}
			c.under[path] = own
			c.mu.Unlock()
			return own, nil
		}
		hangs, since := before.left, before.began
		c.mu.Unlock()
		if hangs {
			return nil, fmt.Errorf("%s does not answer: a call that began %s ago still hangs there", path,
				time.Since(since).Round(time.Second))
		}
		select {
		case <-before.done:
		case <-ctx.Done():
			return nil, fmt.Errorf("given up on %s, where another call is under way: %w", path, context.Cause(ctx))
		}
	}
}
