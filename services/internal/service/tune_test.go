package service

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/microlet/microlet/proto/role"
)

func TestProcessors(t *testing.T) {
	for _, c := range []struct {
		r      role.Role
		single bool
		want   int
	}{
		{role.Podsync, false, maxProcs}, {role.NodeAPI, false, maxProcs},
		{role.Prober, false, 1}, {role.Bus, false, 1}, {role.Up, false, 1},
		{role.Up, true, maxProcs},
	} {
		if got := processors(c.r, c.single); got != c.want {
			t.Errorf("%s computes on %d processors at most (all in one process: %v), want %d", c.r, got, c.single,
				c.want)
		}
	}
}

func TestGarbage(t *testing.T) {
	for _, c := range []struct {
		r      role.Role
		single bool
		want   int
	}{
		{role.Evictor, false, quietGCPercent}, {role.ImageGC, false, quietGCPercent},
		{role.Podsync, false, gcPercent}, {role.Bus, false, gcPercent}, {role.Up, true, gcPercent},
	} {
		if got := garbage(c.r, c.single); got != c.want {
			t.Errorf("the heap of %s may grow by %d %% (all in one process: %v), want %d", c.r, got, c.single, c.want)
		}
	}
}

// TestSettle: what the start took is given back at once, and what is taken later every five minutes. Quiet services
// collect garbage more often.
func TestSettle(t *testing.T) {
	for quiet, want := range map[bool]int32{false: 3, true: 25} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			var collected, unmapped atomic.Int32
			done := make(chan struct{})
			go func() {
				defer close(done)
				settle(ctx, quiet, func() { collected.Add(1) }, func() { unmapped.Add(1) })
			}()
			synctest.Wait()
			if collected.Load() != 1 || unmapped.Load() != 1 {
				t.Errorf("quiet %v: not given back at once", quiet)
			}
			time.Sleep(12*time.Minute + time.Second)
			cancel()
			<-done
			if collected.Load() != want || unmapped.Load() != 3 {
				t.Errorf("quiet %v: in 12 min %d collections, want %d; pages given back %d times, want 3", quiet,
					collected.Load(), want, unmapped.Load())
			}
		})
	}
}
