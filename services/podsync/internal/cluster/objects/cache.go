package objects

import (
	"context"
	"log/slog"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/microlet/microlet/services/internal/logkey"
)

type key struct{ namespace, name string }

// cache holds objects of one kind. One that is older than the TTL is read again; while the apiserver cannot be asked,
// the version that was read last serves, as under the kubelet, so that containers can be started again in an outage.
// With a TTL of 0 nothing is held.
//
// Requests for one object that come while one is under way share its answer. If the object was invalidated since that
// one began, they share the answer to the next one, which begins when it has ended: an answer is never older than the
// question, and one request is under way at a time.
type cache[T any] struct {
	fetch   func(ctx context.Context, namespace, name string) (T, error)
	ttl     time.Duration
	timeout time.Duration
	log     *slog.Logger
	state   *cacheState[T]
}

type cacheState[T any] struct {
	sync.Mutex
	entries map[key]*entry[T]
}

type entry[T any] struct {
	value T
	have  bool
	read  time.Time
	// failed is when a newer version was asked for in vain, since it was read; zero for never.
	failed time.Time
	// call is the request under way, nil when there is none. before is one that began before the object was invalidated.
	call, before *call[T]
}

type call[T any] struct {
	done  chan struct{}
	value T
	err   error
}

func newCache[T any](o Options, fetch func(ctx context.Context, namespace, name string) (T, error)) cache[T] {
	return cache[T]{
		fetch:   fetch,
		ttl:     o.TTL,
		timeout: o.Timeout,
		log:     o.Log,
		state:   &cacheState[T]{entries: map[key]*entry[T]{}},
	}
}

func (c *cache[T]) get(ctx context.Context, k key) (T, error) {
	for {
		under, own, value := c.enter(ctx, k)
		if under == nil {
			return value, nil
		}
		select {
		case <-under.done:
		case <-ctx.Done():
			var none T
			return none, ctx.Err()
		}
		if own {
			return under.value, under.err
		}
	}
}

// enter returns the value if it is held, or else the call to wait for, and whether it answers this question.
func (c *cache[T]) enter(ctx context.Context, k key) (under *call[T], own bool, value T) {
	c.state.Lock()
	defer c.state.Unlock()
	e := c.state.entries[k]
	if e == nil {
		e = &entry[T]{}
		c.state.entries[k] = e
	}
	if e.have && c.serves(e) {
		return nil, true, e.value
	}
	if e.before != nil {
		select {
		case <-e.before.done:
			e.before = nil
		default:
			return e.before, false, value
		}
	}
	if e.call == nil {
		e.call = &call[T]{done: make(chan struct{})}
		// The request belongs to all who wait, so it ends with its own deadline and not with
		// the first one's context.
		go c.run(context.WithoutCancel(ctx), k, e, e.call)
	}
	return e.call, true, value
}

// serves reports whether what is held is returned without asking. After a try that failed it is for a while: an
// apiserver that does not answer must not hold up every container that is started.
func (c *cache[T]) serves(e *entry[T]) bool {
	return time.Since(e.read) < c.ttl || !e.failed.IsZero() && time.Since(e.failed) < c.timeout
}

func (c *cache[T]) run(ctx context.Context, k key, e *entry[T], own *call[T]) {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	began := time.Now()
	own.value, own.err = c.fetch(ctx, k.namespace, k.name)
	c.state.Lock()
	if e.call == own { // else it was invalidated meanwhile: good for those who wait, not for later ones
		e.call = nil
		switch {
		case own.err == nil:
			e.value, e.have, e.read, e.failed = own.value, true, began, time.Time{}
		case apierrors.IsNotFound(own.err):
			if c.state.entries[k] == e {
				delete(c.state.entries, k)
			}
		case e.have && c.ttl > 0:
			if e.failed.IsZero() {
				c.log.Warn("object could not be read again, the version that was read last serves",
					logkey.Namespace, k.namespace, logkey.Name, k.name,
					"read", e.read, logkey.Err, own.err)
			}
			e.failed = time.Now()
			own.value, own.err = e.value, nil
		}
	}
	c.state.Unlock()
	close(own.done)
}

func (c *cache[T]) invalidate(k key) {
	c.state.Lock()
	defer c.state.Unlock()
	e := c.state.entries[k]
	switch {
	case e == nil, e.call == nil && e.before != nil:
	case e.call != nil:
		c.state.entries[k] = &entry[T]{before: e.call}
	default:
		delete(c.state.entries, k)
	}
}

// collect drops what is no longer fresh, not being read, and not in use.
func (c *cache[T]) collect(used map[key]bool) {
	c.state.Lock()
	defer c.state.Unlock()
	for k, e := range c.state.entries {
		if e.call == nil && !used[k] && time.Since(e.read) >= c.ttl {
			delete(c.state.entries, k)
		}
	}
}
