package mounter

import (
	"context"
	"fmt"
	"time"

	"github.com/microlet/microlet/services/internal/keylock"
	"github.com/microlet/microlet/services/internal/shares"
)

// entry is a call that has the lock of its path. On one path one call runs at a time, so that a path that hangs costs
// one child however often it is tried.
type entry struct {
	path, on string
	// long is that of the Operation. number counts the calls. owner is the namespace of the pod that the call is for.
	long   bool
	number uint64
	owner  string
	// runs is set once the call has its share of its file system, and moved is when it last showed that it goes on.
	runs  bool
	moved time.Time
	// at is the mount point that the path is below, and looked which list says so.
	at     string
	looked time.Time
	// held is the lock of the path. It hangs when the call has not answered in time, or its child was killed and does
	// not end.
	held *keylock.Held
}

// enter waits until no other call is on the path.
func (p *Pool) enter(ctx context.Context, c *Call) (*entry, error) {
	held, err := p.paths.Lock(ctx, c.Path)
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", c.Operation, c.Path, err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.entered++
	e := &entry{path: c.Path, on: c.On, long: c.Long, number: p.entered, owner: shares.Owner(ctx), held: held}
	p.entries[e] = true
	return e, nil
}

// watch notes that the call goes on when the child reports how much it has done.
func (p *Pool) watch(ctx context.Context, e *entry) context.Context {
	return WithProgress(ctx, func(done int64) {
		p.mu.Lock()
		e.moved = time.Now()
		p.mu.Unlock()
		Report(ctx, done)
	})
}

// exit leaves the path to the next call.
func (p *Pool) exit(e *entry) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.entries, e)
	e.held.Unlock()
	p.wake()
}
