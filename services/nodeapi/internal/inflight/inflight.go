// Package inflight limits how many requests of a kind are under way at the same time: those that are authenticated, and
// those that read figures.
//
// A request of an address gets a slot or ErrBusy. One address never gets more than its share. Waiting requests are
// served in turn, one address after the other, so many requests of one address do not delay another address by more
// than one request each.
package inflight

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"sync"
	"time"
)

// ErrBusy says that no place came free in time, or that too many wait for one already.
var ErrBusy = errors.New("too many requests of callers that are not authenticated yet are under way")

// Limits of a Limiter.
type Limits struct {
	// Total is how many requests may have a place at one time, PerAddress how many of one address.
	Total, PerAddress int
	// Queue is how many requests of one address may wait, Wait how long each does.
	Queue int
	Wait  time.Duration
}

// Limiter gives out places. It is safe for concurrent use.
type Limiter struct {
	limits Limits

	mu      sync.Mutex
	taken   int
	sources map[netip.Prefix]*source
	turn    []netip.Prefix // those that wait, in the order in which they are served
}

// source is one address.
type source struct {
	taken   int
	waiting []*waiter
}

type waiter struct{ granted chan struct{} }

// New returns a limiter.
func New(l Limits) *Limiter { return &Limiter{limits: l, sources: map[netip.Prefix]*source{}} }

// Acquire returns when the address has a place, and how to give it back, which must be called once.
func (l *Limiter) Acquire(ctx context.Context, address netip.Prefix) (release func(), err error) {
	release = func() { l.release(address) }
	l.mu.Lock()
	s := l.sources[address]
	if s == nil {
		s = &source{}
		l.sources[address] = s
	}
	if l.free(s) && len(s.waiting) == 0 {
		l.taken++
		s.taken++
		l.mu.Unlock()
		return release, nil
	}
	if len(s.waiting) >= l.limits.Queue {
		l.forget(address)
		l.mu.Unlock()
		return nil, ErrBusy
	}
	w := &waiter{granted: make(chan struct{})}
	if s.waiting = append(s.waiting, w); len(s.waiting) == 1 {
		l.turn = append(l.turn, address)
	}
	l.mu.Unlock()

	late := time.NewTimer(l.limits.Wait)
	defer late.Stop()
	select {
	case <-w.granted:
		return release, nil
	case <-late.C:
		err = ErrBusy
	case <-ctx.Done():
		err = ctx.Err()
	}
	if l.leave(address, w) {
		return release, nil // it was granted at the last moment
	}
	return nil, err
}

func (l *Limiter) free(s *source) bool {
	return l.taken < l.limits.Total && s.taken < l.limits.PerAddress
}

// leave takes who waits out of the queue, unless he has been granted a place.
func (l *Limiter) leave(address netip.Prefix, w *waiter) (granted bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.sources[address]
	i := -1
	if s != nil {
		i = slices.Index(s.waiting, w)
	}
	if i < 0 {
		return true
	}
	if s.waiting = slices.Delete(s.waiting, i, i+1); len(s.waiting) == 0 {
		l.turn = slices.DeleteFunc(l.turn, func(a netip.Prefix) bool { return a == address })
	}
	l.forget(address)
	return false
}

func (l *Limiter) release(address netip.Prefix) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.taken--
	l.sources[address].taken--
	l.grant()
	l.forget(address)
}

// grant gives the free places to those who wait: to each address one, in turn.
func (l *Limiter) grant() {
	for {
		i := slices.IndexFunc(l.turn, func(a netip.Prefix) bool { return l.free(l.sources[a]) })
		if i < 0 {
			return
		}
		address := l.turn[i]
		s := l.sources[address]
		l.taken++
		s.taken++
		close(s.waiting[0].granted)
		s.waiting = slices.Delete(s.waiting, 0, 1)
		l.turn = slices.Delete(l.turn, i, i+1)
		if len(s.waiting) > 0 {
			l.turn = append(l.turn, address)
		}
	}
}

// forget drops an address of which nothing is under way.
func (l *Limiter) forget(address netip.Prefix) {
	if s := l.sources[address]; s != nil && s.taken == 0 && len(s.waiting) == 0 {
		delete(l.sources, address)
	}
}
