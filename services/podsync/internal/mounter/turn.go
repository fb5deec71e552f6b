package mounter

import (
	"context"
	"fmt"
	"time"

	"github.com/microlet/microlet/services/internal/shares"
)

// turn is a call's on its path. Of the calls on one path one runs at a time, so that a path that hangs costs one child
// however often it is tried.
type turn struct {
	path, on string
	// long is the Operation's, number that of the call among all. Owner is the namespace whose pod it is for.
	long   bool
	number uint64
	owner  string
	began  time.Time
	// runs is set once the call has its share of its file system, and moved is when it last showed that it goes on.
	runs  bool
	moved time.Time
	// at is the mount point that the path is below, and looked which list says so.
	at     string
	looked time.Time
	// done is closed when the turn is over.
	done chan struct{}
	// hangs is closed when the call has not answered in time, or its child was killed and does not end.
	hangs chan struct{}
}

// enter waits for the call's turn on its path.
func (p *Pool) enter(ctx context.Context, c *Call) (*turn, error) {
	for {
		p.mu.Lock()
		before := p.turns[c.Path]
		if before == nil {
			p.entered++
			own := &turn{path: c.Path, on: c.On, long: c.Long, number: p.entered, owner: shares.Owner(ctx), began: time.Now(),
				done: make(chan struct{}), hangs: make(chan struct{})}
			p.turns[c.Path] = own
			p.mu.Unlock()
			return own, nil
		}
		p.mu.Unlock()
		select {
		case <-before.done:
		case <-before.hangs:
			return nil, fmt.Errorf("%s %s: the path does not answer: a call that began %s ago still hangs there",
				c.Operation, c.Path, time.Since(before.began).Round(time.Second))
		case <-ctx.Done():
			return nil, fmt.Errorf("%s %s: given up, since another call is under way there: %w", c.Operation, c.Path,
				context.Cause(ctx))
		}
	}
}

// hang says that others need not wait for the turn.
func (p *Pool) hang(t *turn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !t.isHung() {
		close(t.hangs)
	}
}

// isHung reports whether hang was called.
func (t *turn) isHung() bool {
	select {
	case <-t.hangs:
		return true
	default:
		return false
	}
}

// watch has the turn note that its call goes on when the child tells how much it has done.
func (p *Pool) watch(ctx context.Context, t *turn) context.Context {
	return WithProgress(ctx, func(done int64) {
		p.mu.Lock()
		t.moved = time.Now()
		p.mu.Unlock()
		Report(ctx, done)
	})
}

// exit ends the turn.
func (p *Pool) exit(t *turn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.turns, t.path)
	close(t.done)
	p.wake()
}
