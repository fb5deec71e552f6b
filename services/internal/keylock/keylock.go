// Package keylock has a lock for each key. A caller waits for it until its context ends, or until its holder reports
// that it hangs.
package keylock

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// Locks are the locks of all keys, each of which is there only while it is held. The zero value is ready, and safe for
// concurrent use.
type Locks[K comparable] struct {
	mu   sync.Mutex
	held map[K]*Held
}

// Held is a lock that a caller holds. Its methods may be called by several goroutines.
type Held struct {
	since          time.Time
	unlock, hang   func()
	released, hung chan struct{}
}

// Lock waits for the lock of a key. It fails when the context ends, and at once if the holder hangs. Its error does not
// name the key: the caller adds that.
func (l *Locks[K]) Lock(ctx context.Context, key K) (*Held, error) {
	for {
		l.mu.Lock()
		before := l.held[key]
		if before == nil {
			defer l.mu.Unlock()
			return l.hold(key), nil
		}
		l.mu.Unlock()
		select {
		case <-before.released:
		case <-before.hung:
			return nil, fmt.Errorf("it does not answer: a call that began %s ago still hangs there",
				time.Since(before.since).Round(time.Second))
		case <-ctx.Done():
			return nil, fmt.Errorf("another call is under way there: %w", context.Cause(ctx))
		}
	}
}

// hold makes the lock of a key. The mutex is held.
func (l *Locks[K]) hold(key K) *Held {
	h := &Held{since: time.Now(), released: make(chan struct{}), hung: make(chan struct{})}
	h.hang = sync.OnceFunc(func() { close(h.hung) })
	h.unlock = sync.OnceFunc(func() {
		l.mu.Lock()
		delete(l.held, key)
		l.mu.Unlock()
		close(h.released)
	})
	if l.held == nil {
		l.held = map[K]*Held{}
	}
	l.held[key] = h
	return h
}

// Unlock gives the lock to a caller that waits for it. Further calls do nothing.
func (h *Held) Unlock() { h.unlock() }

// Hang makes callers fail at once, those that wait already and those that come, until Unlock.
func (h *Held) Hang() { h.hang() }

// Hangs reports whether Hang was called.
func (h *Held) Hangs() bool {
	select {
	case <-h.hung:
		return true
	default:
		return false
	}
}
