package schedule

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

func start(t *testing.T, turned func(), jobs ...Job) *Loop {
	t.Helper()
	l := New(turned)
	if err := l.Add(jobs...); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- l.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	return l
}

func pass(d time.Duration) { time.Sleep(d); synctest.Wait() }

func TestHangingJobStopsNeitherTheLoopNorTheOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var turns, others, ended atomic.Int64
		start(t, func() { turns.Add(1) },
			Job{"hangs", 20 * time.Second, func(ctx context.Context) time.Duration {
				<-ctx.Done()
				ended.Add(1)
				return time.Hour
			}},
			Job{"other", time.Second, func(context.Context) time.Duration { others.Add(1); return 2 * time.Second }})
		pass(19 * time.Second)
		if turns.Load() < 19 || others.Load() != 10 || ended.Load() != 0 {
			t.Errorf("%d turns, %d runs of the other job, %d ends; want 19 or more, 10, 0", turns.Load(), others.Load(),
				ended.Load())
		}
		pass(2 * time.Second)
		if ended.Load() != 1 {
			t.Error("the deadline did not end the hanging job")
		}
	})
}

func TestKick(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var runs, atOnce, most atomic.Int64
		l := start(t, func() {}, Job{"job", time.Minute, func(context.Context) time.Duration {
			most.Store(max(most.Load(), atOnce.Add(1)))
			time.Sleep(time.Second)
			atOnce.Add(-1)
			runs.Add(1)
			return Never
		}})
		pass(time.Hour)
		if n := runs.Load(); n != 1 {
			t.Fatalf("%d runs of a job that never comes again, want 1", n)
		}
		l.Kick("job")
		l.Kick("unknown")
		pass(500 * time.Millisecond)
		for range 5 {
			l.Kick("job") // while it runs
		}
		pass(time.Hour)
		if n := runs.Load(); n != 3 {
			t.Errorf("%d runs, want 3: the kicks during a run are one", n)
		}
		if most.Load() != 1 {
			t.Errorf("%d runs at a time", most.Load())
		}
	})
}

func TestBadJobsAreRefused(t *testing.T) {
	ok := func(context.Context) time.Duration { return Never }
	for _, jobs := range [][]Job{
		{{Name: "", Deadline: 1, Run: ok}}, {{Name: "a", Run: ok}}, {{Name: "a", Deadline: 1}},
		{{"a", 1, ok}, {"a", 1, ok}},
	} {
		if err := New(func() {}).Add(jobs...); err == nil {
			t.Errorf("Add took %v", jobs)
		}
	}
}
