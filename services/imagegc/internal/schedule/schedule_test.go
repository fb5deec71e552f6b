package schedule

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

func TestTasksRunAtTheirPeriods(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute+time.Second)
		defer cancel()
		var quick, slow, turns atomic.Int64
		err := Run(ctx, func() { turns.Add(1) },
			&Task{Period: 10 * time.Second, Run: func(context.Context) { quick.Add(1) }},
			&Task{Period: 10 * time.Second, Run: func(ctx context.Context) {
				slow.Add(1)
				<-ctx.Done()
			}})
		if err != nil || quick.Load() != 7 || slow.Load() != 1 || turns.Load() != 31 {
			t.Errorf("%d quick and %d slow runs, %d turns, %v", quick.Load(), slow.Load(), turns.Load(), err)
		}
	})
}
