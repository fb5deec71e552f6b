package csivolume

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"

	"google.golang.org/grpc/status"

	csidriver "github.com/microlet/microlet/services/podsync/internal/volumes/internal/csi"
)

// locks are one for each volume.
type locks struct {
	calls *calls

	mu   sync.Mutex
	held map[device]chan struct{}
}

// lock waits for the volume, until ctx ends.
func (l *locks) lock(ctx context.Context, d device) (*turn, error) {
	for {
		l.mu.Lock()
		before, taken := l.held[d]
		if !taken {
			own := make(chan struct{})
			if l.held == nil {
				l.held = map[device]chan struct{}{}
			}
			l.held[d] = own
			l.mu.Unlock()
			return newTurn(l.calls, func() {
				l.mu.Lock()
				delete(l.held, d)
				l.mu.Unlock()
				close(own)
			}), nil
		}
		l.mu.Unlock()
		select {
		case <-before:
		case <-ctx.Done():
			return nil, fmt.Errorf("volume %s of CSI driver %s: another call is under way: %w", d.handle, d.driver,
				context.Cause(ctx))
		}
	}
}

// turn is a caller's turn at a volume, which is locked. It lasts until the caller has ended it, and until the call that
// the caller has given up is over.
type turn struct {
	calls *calls
	// holders are the caller and the call.
	holders atomic.Int32
	unlock  func()
}

func newTurn(c *calls, unlock func()) *turn {
	t := &turn{calls: c, unlock: unlock}
	t.holders.Store(1)
	return t
}

func (t *turn) end() {
	if t.holders.Add(-1) == 0 {
		t.unlock()
	}
}

// call has the driver change the volume. It returns early when ctx ends, with the error that gRPC has for that.
func (t *turn) call(ctx context.Context, do func(context.Context) error) error {
	if err := ctx.Err(); err != nil {
		return status.FromContextError(err).Err()
	}
	answer := make(chan error, 1)
	t.holders.Add(1)
	err := t.calls.begin(ctx, func(ctx context.Context) {
		err := do(ctx)
		t.end()
		answer <- err
	})
	if err != nil {
		t.end()
		return err
	}
	select {
	case err := <-answer:
		return err
	case <-ctx.Done():
		return status.FromContextError(ctx.Err()).Err()
	}
}

// unpublish has the driver take the volume from a pod.
func (t *turn) unpublish(ctx context.Context, driver *csidriver.Driver, handle, target string) error {
	return t.call(ctx, func(ctx context.Context) error { return driver.Unpublish(ctx, handle, target) })
}
