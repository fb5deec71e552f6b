package run

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

var errBroken = errors.New("broken")

func TestFirstErrorStopsAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, ctx := New(t.Context())
		var ended atomic.Int32
		for range 3 {
			g.Go("waits", func(ctx context.Context) error {
				<-ctx.Done()
				ended.Add(1)
				return ctx.Err()
			})
		}
		g.Go("fails", func(context.Context) error {
			time.Sleep(time.Second)
			return errBroken
		})
		err := g.Wait()
		if !errors.Is(err, errBroken) || err.Error() != "fails: broken" {
			t.Errorf("Wait is %v, want the failed task's name and error and nothing else", err)
		}
		if ended.Load() != 3 {
			t.Errorf("%d of 3 tasks had ended when Wait returned", ended.Load())
		}
		if !errors.Is(context.Cause(ctx), errBroken) {
			t.Errorf("cause is %v, want the error", context.Cause(ctx))
		}
	})
}

func TestEndOfContextIsNoError(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	g, _ := New(ctx)
	g.Go("waits", func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() })
	cancel()
	if err := g.Wait(); err != nil {
		t.Errorf("Wait is %v, want nil", err)
	}
}

func TestCanceledWithoutAStopIsAnError(t *testing.T) {
	g, _ := New(t.Context())
	g.Go("odd", func(context.Context) error { return context.Canceled })
	if err := g.Wait(); !errors.Is(err, context.Canceled) {
		t.Errorf("Wait is %v: nothing had stopped the group, so the task failed by itself", err)
	}
}

func TestEndOfATaskStopsNoOtherTask(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, ctx := New(t.Context())
		g.Go("short", func(context.Context) error { return nil })
		g.Go("long", func(ctx context.Context) error {
			select {
			case <-ctx.Done():
				return errors.New("stopped")
			case <-time.After(time.Hour):
				return nil
			}
		})
		synctest.Wait()
		if got := g.Running(); !slices.Equal(got, []string{"long"}) {
			t.Errorf("running is %v, want long", got)
		}
		if ctx.Err() != nil {
			t.Error("the end of one task stopped the group")
		}
		if err := g.Wait(); err != nil {
			t.Error(err)
		}
	})
}

func TestPanicIsAnErrorWithItsStack(t *testing.T) {
	g, _ := New(t.Context())
	g.Go("panics", func(context.Context) error { panic(errBroken) })
	err := g.Wait()
	var p *PanicError
	if !errors.As(err, &p) || !errors.Is(err, errBroken) {
		t.Fatalf("Wait is %v, want a PanicError that is the value", err)
	}
	if !strings.Contains(string(p.Stack), "TestPanicIsAnErrorWithItsStack") ||
		!strings.HasPrefix(err.Error(), "panics: panic: broken") {
		t.Errorf("error is %v: want the task's name, and the place in the stack", err)
	}
}

func TestGoexitIsAnError(t *testing.T) {
	g, _ := New(t.Context())
	g.Go("leaves", func(context.Context) error { runtime.Goexit(); return nil })
	if err := g.Wait(); err == nil || !strings.Contains(err.Error(), "Goexit") {
		t.Errorf("Wait is %v, want an error that speaks of Goexit", err)
	}
}

func TestErrorsWhileStoppingAreKept(t *testing.T) {
	g, _ := New(t.Context())
	other := errors.New("could not close")
	g.Go("first", func(context.Context) error { return errBroken })
	g.Go("second", func(ctx context.Context) error { <-ctx.Done(); return other })
	err := g.Wait()
	if !errors.Is(err, errBroken) || !errors.Is(err, other) {
		t.Errorf("Wait is %v, want both errors", err)
	}
}
