package volumes

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestAHungCallIsLeftAndHangsAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c calls
		release := make(chan struct{})
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		began := time.Now()
		err := c.do(ctx, "/nfs", func() error { <-release; return nil })
		if !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != time.Minute+leave {
			t.Fatalf("%v after %v", err, time.Since(began))
		}
		ran := false
		err = c.do(t.Context(), "/nfs", func() error { ran = true; return nil })
		if ran || err == nil || !strings.Contains(err.Error(), "a call that began 1m1s ago still hangs there") {
			t.Fatalf("ran %v, %v: a path that hangs must not cost a second goroutine", ran, err)
		}
		if err := c.do(t.Context(), "/other", func() error { return nil }); err != nil {
			t.Fatalf("another path: %v", err)
		}
		close(release)
		synctest.Wait()
		if err := c.do(t.Context(), "/nfs", func() error { return nil }); err != nil {
			t.Fatalf("it answers again: %v", err)
		}
	})
}

func TestCallsOnOnePathRunOneAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c calls
		release, results := make(chan struct{}), make(chan error, 2)
		go func() { results <- c.do(t.Context(), "/p", func() error { <-release; return nil }) }()
		synctest.Wait()
		order := []string{}
		go func() {
			results <- c.do(t.Context(), "/p", func() error { order = append(order, "second"); return nil })
		}()
		synctest.Wait()
		if len(order) != 0 {
			t.Fatal("two calls on one path at a time")
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := c.do(ctx, "/p", func() error { return nil }); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("waited for the path beyond its deadline: %v", err)
		}
		close(release)
		for range 2 {
			if err := <-results; err != nil {
				t.Fatal(err)
			}
		}
		if len(order) != 1 {
			t.Fatal("the second call was lost")
		}
	})
}

func TestACallThatEndsInTimeIsWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c calls
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		ended := false
		err := c.do(ctx, "/p", func() error { time.Sleep(leave / 2); ended = true; return nil })
		if !ended || !errors.Is(err, context.Canceled) {
			t.Fatalf("ended %v, %v: what removes the folder must not meet a call that still writes there", ended, err)
		}
	})
}
