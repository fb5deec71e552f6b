// Package shares divides a number of places among owners, such as the namespaces of pods.
//
// An owner may have all places while no other one wants any. A place that becomes free goes to the owner that has the
// fewest of those who wait, and among equals to the one that was given a place the longest time ago. So an owner with
// thousands of requests delays another one by no more than a place is held.
package shares

import (
	"context"
	"sync"
)

// Places are a number of places. They are safe for concurrent use.
type Places struct {
	mu     sync.Mutex
	free   int
	turn   uint64
	owners map[string]*owner
	line   []*waiter
}

// owner is one that has places or waits for some.
type owner struct {
	taken, waiting int
	// turn is that of the last place that it was given.
	turn uint64
}

type waiter struct {
	owner string
	given chan struct{}
}

// New returns places, of which all are free.
func New(places int) *Places { return &Places{free: max(places, 1), owners: map[string]*owner{}} }

// Take waits for a place for an owner. It fails only with ctx. release gives the place back; calls after the first do
// nothing.
func (p *Places) Take(ctx context.Context, of string) (release func(), err error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	p.mu.Lock()
	w := p.enter(of)
	p.mu.Unlock()
	select {
	case <-w.given:
		return p.releaseOnce(of), nil
	case <-ctx.Done():
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-w.given:
		p.release(of)
	default:
		p.leave(w)
		p.forget(of)
	}
	return nil, ctx.Err()
}

// TryTake takes a place if one is free.
func (p *Places) TryTake(of string) (release func(), ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.free == 0 { // else no request waits
		return nil, false
	}
	p.enter(of)
	return p.releaseOnce(of), true
}

func (p *Places) releaseOnce(of string) func() {
	return sync.OnceFunc(func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.release(of)
	})
}

// enter puts an owner into the line. The lock is held, as in what follows.
func (p *Places) enter(of string) *waiter {
	w := &waiter{of, make(chan struct{})}
	if p.owners[of] == nil {
		p.owners[of] = &owner{}
	}
	p.owners[of].waiting++
	p.line = append(p.line, w)
	p.serve()
	return w
}

// serve gives free places to those who wait.
func (p *Places) serve() {
	for p.free > 0 && len(p.line) > 0 {
		next := p.line[0]
		for _, w := range p.line[1:] {
			if p.owners[w.owner].before(p.owners[next.owner]) {
				next = w
			}
		}
		p.leave(next)
		p.free--
		p.turn++
		o := p.owners[next.owner]
		o.taken, o.turn = o.taken+1, p.turn
		close(next.given)
	}
}

func (o *owner) before(other *owner) bool {
	return o.taken < other.taken || o.taken == other.taken && o.turn < other.turn
}

// leave takes a waiter out of the line.
func (p *Places) leave(w *waiter) {
	for i := range p.line {
		if p.line[i] == w {
			p.line = append(p.line[:i], p.line[i+1:]...)
			p.owners[w.owner].waiting--
			return
		}
	}
}

func (p *Places) release(of string) {
	p.free++
	p.owners[of].taken--
	p.forget(of)
	p.serve()
}

// forget drops an owner that has nothing and wants nothing.
func (p *Places) forget(of string) {
	if o := p.owners[of]; o.taken == 0 && o.waiting == 0 {
		delete(p.owners, of)
	}
}

type ownerKey struct{}

// WithOwner returns a context for requests of an owner.
func WithOwner(ctx context.Context, owner string) context.Context {
	return context.WithValue(ctx, ownerKey{}, owner)
}

// Owner returns the owner of a context; empty is none in particular.
func Owner(ctx context.Context) string {
	owner, _ := ctx.Value(ownerKey{}).(string)
	return owner
}
