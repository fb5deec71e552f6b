package cachedvalue

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// bubble runs f with a value that is read by take, in virtual time.
func bubble(t *testing.T, change func(*Options[int]), take func(ctx context.Context, n int) error,
	f func(t *testing.T, v *Value[int], takes *atomic.Int32),
) {
	synctest.Test(t, func(t *testing.T) {
		var takes atomic.Int32
		o := Options[int]{
			What: "the figures", Timeout: 30 * time.Second, Patience: 5 * time.Second, Stale: 2 * time.Minute,
			Log: slog.New(slog.DiscardHandler),
			Read: func(ctx context.Context) (int, error) {
				n := int(takes.Add(1))
				return n, take(ctx, n)
			},
		}
		if change != nil {
			change(&o)
		}
		v := New(o)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- v.Run(ctx) }()
		f(t, v, &takes)
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func quick(context.Context, int) error { return nil }

func TestReadersShareATake(t *testing.T) {
	slow := func(context.Context, int) error { time.Sleep(time.Second); return nil }
	bubble(t, nil, slow, func(t *testing.T, v *Value[int], takes *atomic.Int32) {
		answers := make(chan Answer[int], 10)
		for range cap(answers) {
			go func() {
				a, err := v.Get(t.Context(), 10*time.Second)
				if err != nil {
					t.Error(err)
				}
				answers <- a
			}()
		}
		for range cap(answers) {
			if a := <-answers; a.Value != 1 || a.Problem != "" {
				t.Errorf("a reader got %+v", a)
			}
		}
		time.Sleep(8 * time.Second)
		if a, err := v.Get(t.Context(), 10*time.Second); err != nil || a.Value != 1 || time.Since(a.ReadAt) != 9*time.Second {
			t.Errorf("9 s later there is %+v, %v", a, err)
		}
		time.Sleep(2 * time.Second)
		if a, err := v.Get(t.Context(), 10*time.Second); err != nil || a.Value != 2 || a.Problem != "" {
			t.Errorf("11 s later there is %+v, %v", a, err)
		}
		if n := takes.Load(); n != 2 {
			t.Errorf("%d takes, want 2", n)
		}
	})
}

func TestNothingIsTakenWithoutARequest(t *testing.T) {
	for idle, want := range map[time.Duration]int32{0: 0, time.Minute: 60} {
		bubble(t, func(o *Options[int]) { o.Idle = idle }, quick,
			func(t *testing.T, _ *Value[int], takes *atomic.Int32) {
				time.Sleep(time.Hour)
				if n := takes.Load(); n < want-3 || n > want+1 {
					t.Errorf("with a cadence of %s there were %d takes in an hour, want %d", idle, n, want)
				}
			})
	}
}

// A read that hangs delays no reader: readers get the last figures and the reason, then an error, and new figures when
// it has ended.
func TestATakeThatHangs(t *testing.T) {
	var release atomic.Bool
	hang := func(_ context.Context, n int) error {
		for n == 2 && !release.Load() { // it does not even end with its context
			time.Sleep(time.Second)
		}
		return nil
	}
	bubble(t, nil, hang, func(t *testing.T, v *Value[int], takes *atomic.Int32) {
		get := func() (Answer[int], error) {
			began := time.Now()
			a, err := v.Get(t.Context(), 10*time.Second)
			if took := time.Since(began); took > 5*time.Second {
				t.Errorf("a reader waited %s", took)
			}
			return a, err
		}
		if _, err := get(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		a, err := get()
		if err != nil || a.Value != 1 || !strings.Contains(a.Problem, "the figures have been under way for 5s") {
			t.Errorf("during the hang there is %+v, %v", a, err)
		}
		time.Sleep(2 * time.Minute)
		if a, err := get(); err == nil || !strings.Contains(err.Error(), "are 3m10s old") {
			t.Errorf("after two minutes there is %+v, %v", a, err)
		}
		if n := takes.Load(); n != 2 {
			t.Errorf("%d takes were begun beside the one that hangs", n-2)
		}
		release.Store(true)
		time.Sleep(2 * time.Second)
		if a, err := get(); err != nil || a.Value < 2 || a.Problem != "" {
			t.Errorf("after the hang there is %+v, %v", a, err)
		}
	})
}

func TestATakeThatFails(t *testing.T) {
	broken := errors.New("broken")
	var failing atomic.Bool
	failing.Store(true)
	take := func(context.Context, int) error {
		if failing.Load() {
			return broken
		}
		return nil
	}
	var reported []error
	bubble(t, func(o *Options[int]) { o.OnRead = func(_ Answer[int], err error) { reported = append(reported, err) } },
		take,
		func(t *testing.T, v *Value[int], _ *atomic.Int32) {
			if _, err := v.Get(t.Context(), time.Second); !errors.Is(err, broken) {
				t.Errorf("the first failure is %v", err)
			}
			if _, ok := v.Last(); ok {
				t.Error("there is a value after a failure")
			}
			failing.Store(false)
			if a, err := v.Get(t.Context(), time.Second); err != nil || a.Problem != "" {
				t.Errorf("after it there is %+v, %v", a, err)
			}
			failing.Store(true)
			time.Sleep(3 * time.Second)
			if a, err := v.Get(t.Context(), time.Second); err != nil || a.Problem != "broken" {
				t.Errorf("when it fails again there is %+v, %v", a, err)
			}
			if len(reported) != 3 || reported[0] == nil || reported[1] != nil || reported[2] == nil {
				t.Errorf("reported %v", reported)
			}
		})
}

func TestAReaderLeaves(t *testing.T) {
	slow := func(ctx context.Context, _ int) error { <-ctx.Done(); return ctx.Err() }
	bubble(t, nil, slow, func(t *testing.T, v *Value[int], _ *atomic.Int32) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		began := time.Now()
		if _, err := v.Get(ctx, time.Second); err == nil || time.Since(began) != time.Second {
			t.Errorf("a reader with a second got %v after %s", err, time.Since(began))
		}
	})
}

// The loop goes on whatever a read does, or the watchdog would kill the process.
func TestTheLoopTurns(t *testing.T) {
	var turns atomic.Int32
	hang := func(ctx context.Context, _ int) error { <-ctx.Done(); return ctx.Err() }
	bubble(t, func(o *Options[int]) { o.Turned = func() { turns.Add(1) } }, hang,
		func(t *testing.T, v *Value[int], _ *atomic.Int32) {
			go func() { _, _ = v.Get(t.Context(), 0) }()
			time.Sleep(time.Minute)
			if n := turns.Load(); n < 29 {
				t.Errorf("the loop did %d rounds in a minute", n)
			}
		})
}
