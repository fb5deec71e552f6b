// Package run starts the tasks of a process, stops them together and waits for each.
//
// A task is a function that ends when its context ends. The first task that fails stops all others. So do SIGTERM
// and SIGINT. A panic in a task becomes an error with the name and the stack of the task. Wait returns when no task
// runs. The package also sends notifications with systemd's sd_notify protocol.
package run

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"sync"
)

// Group is a set of tasks that live and end together. The zero value is not usable; see New.
type Group struct {
	ctx    context.Context
	cancel context.CancelCauseFunc
	wg     sync.WaitGroup

	mu      sync.Mutex
	running map[string]int
	errs    []error
}

// New returns an empty group, and the context that its tasks get: it ends when ctx does or when the
// first task fails, and its cause is then that task's error.
func New(ctx context.Context) (*Group, context.Context) {
	ctx, cancel := context.WithCancelCause(ctx)
	return &Group{ctx: ctx, cancel: cancel, running: map[string]int{}}, ctx
}

// Go starts a task. The name is part of its error. A task that returns nil has ended, and the others
// go on; a task that fails or panics stops the group. An error that only repeats that the group's
// context has ended is not a failure.
//
// Go may be called from inside a task, but not after Wait has returned.
func (g *Group) Go(name string, f func(ctx context.Context) error) {
	g.mu.Lock()
	g.running[name]++
	g.mu.Unlock()

	g.wg.Go(func() {
		// What stays when the task neither returns nor panics: runtime.Goexit cannot be stopped, and
		// what relies on the task would wait for ever.
		err := errors.New("task left by runtime.Goexit")
		defer func() {
			if v := recover(); v != nil {
				err = &PanicError{Value: v, Stack: debug.Stack()}
			}
			g.end(name, err)
		}()
		err = f(g.ctx)
	})
}

// end takes a task off the group's list, and stops the group if the task failed.
func (g *Group) end(name string, err error) {
	stopping := g.ctx.Err() != nil

	g.mu.Lock()
	defer g.mu.Unlock()
	if g.running[name]--; g.running[name] == 0 {
		delete(g.running, name)
	}
	if err == nil || stopping && errors.Is(err, context.Canceled) {
		return
	}
	err = fmt.Errorf("%s: %w", name, err)
	g.errs = append(g.errs, err)
	g.cancel(err)
}

// Cancel stops the group without an error.
func (g *Group) Cancel() { g.cancel(nil) }

// Wait waits for every task and returns their errors joined, the first to fail first; nil when all
// ended well, or ended because the context did.
func (g *Group) Wait() error {
	g.wg.Wait()
	g.cancel(nil)
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.errs) == 1 {
		return g.errs[0]
	}
	return errors.Join(g.errs...)
}

// Running names the tasks that have not ended, sorted: what a stop still waits for.
func (g *Group) Running() []string {
	g.mu.Lock()
	defer g.mu.Unlock()
	names := make([]string, 0, len(g.running))
	for name := range g.running {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// PanicError is what a task's panic becomes.
type PanicError struct {
	// Value is what was given to panic.
	Value any
	// Stack is the panicking goroutine's, as debug.Stack prints it.
	Stack []byte
}

func (e *PanicError) Error() string { return fmt.Sprintf("panic: %v\n%s", e.Value, e.Stack) }

// Unwrap gives the panic's value when it is an error, so that errors.Is sees through it.
func (e *PanicError) Unwrap() error {
	err, _ := e.Value.(error)
	return err
}
