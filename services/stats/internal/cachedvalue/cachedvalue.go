// Package cachedvalue lets concurrent readers share what is expensive to read.
//
// Without requests, values are read at a slow cadence only. Of any number of readers that find the last value too old,
// one read serves all. A reader waits a bounded time: then it gets the last value, and learns why it is old, or an
// error if that is too old to be of use. A read that hangs delays no reader, and no second one is begun beside it.
package cachedvalue

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/microlet/microlet/services/internal/signal"
)

// turn is the period of the loop, far below the watchdog's patience.
const turn = 2 * time.Second

// Options of a Value. All durations but Idle are required.
type Options[T any] struct {
	// What is the name for messages: "the cgroups".
	What string
	// Read reads a new value; its context ends after Timeout.
	Read func(ctx context.Context) (T, error)
	// Timeout bounds a read.
	Timeout time.Duration
	// Patience is how long a reader waits for a new value.
	Patience time.Duration
	// Stale is how old a value may be that is given out because there is no newer one.
	Stale time.Duration
	// Idle is how often a value is read without a request; 0 is never.
	Idle time.Duration
	// OnRead is called after each read, from its goroutine; nil disables it.
	OnRead func(a Answer[T], err error)
	// Turned is called in each round of the loop; nil disables it.
	Turned func()
	Log    *slog.Logger
}

// Answer is a value and how it came about.
type Answer[T any] struct {
	Value T
	// ReadAt is when the read began that the value is from.
	ReadAt time.Time
	// Problem says why there is no newer value; empty if this one is as new as it should be.
	Problem string
}

// Value is a shared value. It is safe for concurrent use.
type Value[T any] struct {
	o      Options[T]
	wakeup signal.Signal

	mu     sync.Mutex
	last   *Answer[T] // nil before the first
	failed error      // of the last read
	tried  time.Time  // when the last read began
	under  chan struct{}
	wanted chan struct{} // closed when the read ends that was asked for and has not begun
}

// New returns a value that has not been read. Run must run for it ever to be.
func New[T any](o Options[T]) *Value[T] {
	if o.OnRead == nil {
		o.OnRead = func(Answer[T], error) {}
	}
	if o.Turned == nil {
		o.Turned = func() {}
	}
	return &Value[T]{o: o, wakeup: signal.New()}
}

// Run reads values as they are asked for until ctx ends. It waits a bounded time for a read that hangs.
func (v *Value[T]) Run(ctx context.Context) error {
	t := time.NewTicker(turn)
	defer t.Stop()
	for {
		if end := v.next(); end != nil {
			go v.read(ctx, end)
		}
		v.o.Turned()
		select {
		case <-ctx.Done():
			v.settle()
			return nil
		case <-t.C:
		case <-v.wakeup:
		}
	}
}

// next returns what is to be closed when the read ends that is to begin now; nil if none is.
func (v *Value[T]) next() chan struct{} {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.under != nil {
		return nil
	}
	idle := v.o.Idle > 0 && time.Since(v.tried) >= v.o.Idle
	if v.wanted == nil && !idle {
		return nil
	}
	v.under, v.wanted = v.wanted, nil
	if v.under == nil {
		v.under = make(chan struct{})
	}
	v.tried = time.Now()
	return v.under
}

// read reads a value.
func (v *Value[T]) read(ctx context.Context, end chan struct{}) {
	ctx, cancel := context.WithTimeout(ctx, v.o.Timeout)
	defer cancel()
	began := time.Now()
	value, err := v.o.Read(ctx)
	answer := Answer[T]{Value: value, ReadAt: began}
	v.mu.Lock()
	if v.failed = err; err == nil {
		v.last = &answer
	}
	v.under = nil
	v.mu.Unlock()
	v.o.OnRead(answer, err)
	close(end)
	v.wakeup.Set() // a reader may want the next
}

// settle waits for the read that is under way. Its context has ended.
func (v *Value[T]) settle() {
	v.mu.Lock()
	under := v.under
	v.mu.Unlock()
	if under == nil {
		return
	}
	t := time.NewTimer(v.o.Patience)
	defer t.Stop()
	select {
	case <-under:
	case <-t.C:
		v.o.Log.Warn("measurement abandoned at stop", "what", v.o.What)
	}
}

// Get returns a value that is no older than age, if one can be had in time. See Answer and the package.
func (v *Value[T]) Get(ctx context.Context, age time.Duration) (Answer[T], error) {
	asked := time.Now()
	fresh, end := v.ask(age)
	if fresh != nil {
		return *fresh, nil
	}
	v.wakeup.Set()
	t := time.NewTimer(v.o.Patience)
	defer t.Stop()
	select {
	case <-end:
	case <-ctx.Done():
	case <-t.C:
	}
	return v.settled(asked)
}

// Last returns the last value however old it is, false if there is none.
func (v *Value[T]) Last() (Answer[T], bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.last == nil {
		return Answer[T]{}, false
	}
	return *v.last, true
}

// ask returns the last value if it is new enough, else what is closed when a newer one is there.
func (v *Value[T]) ask(age time.Duration) (*Answer[T], chan struct{}) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.last != nil && time.Since(v.last.ReadAt) <= age {
		return v.last, nil
	}
	if v.under != nil { // it began after the last one ended, and so is newer
		return nil, v.under
	}
	if v.wanted == nil {
		v.wanted = make(chan struct{})
	}
	return nil, v.wanted
}

// settled returns the best answer after the wait of a caller that asked at that time.
func (v *Value[T]) settled(asked time.Time) (Answer[T], error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	var why error
	switch {
	case v.under != nil:
		why = fmt.Errorf("%s have been under way for %s", v.o.What, time.Since(v.tried).Round(time.Second))
	case v.failed != nil:
		why = v.failed
	case v.last == nil:
		why = errors.New(v.o.What + " have not been measured yet")
	}
	if v.last == nil {
		return Answer[T]{}, why
	}
	if why == nil || v.last.ReadAt.After(asked) {
		return *v.last, nil
	}
	old := time.Since(v.last.ReadAt)
	if old > v.o.Stale {
		return Answer[T]{}, fmt.Errorf("the last figures are %s old: %w", old.Round(time.Second), why)
	}
	answer := *v.last
	answer.Problem = why.Error()
	return answer, nil
}
