// Package schedule runs tasks again and again, each at its period.
package schedule

import (
	"context"
	"sync"
	"time"
)

// tick is the period of the loop, which the watchdog watches.
const tick = 2 * time.Second

// Task is what is to be done again and again. It is not started while it runs.
type Task struct {
	Period time.Duration
	Run    func(ctx context.Context)

	last    time.Time
	running chan struct{} // closed when it has ended; nil before the first start
}

// Run starts each task at once and then at its period, until ctx ends. turned is called in each round of the loop. It
// waits for the running tasks. Their context has ended.
func Run(ctx context.Context, turned func(), tasks ...*Task) error {
	var all sync.WaitGroup
	defer all.Wait()
	t := time.NewTicker(tick)
	defer t.Stop()
	for {
		for _, task := range tasks {
			task.startIfDue(ctx, &all)
		}
		turned()
		select {
		case <-ctx.Done():
			return nil
		case <-t.C:
		}
	}
}

func (t *Task) startIfDue(ctx context.Context, all *sync.WaitGroup) {
	if t.running != nil {
		select {
		case <-t.running:
		default:
			return
		}
		if time.Since(t.last) < t.Period {
			return
		}
	}
	t.last, t.running = time.Now(), make(chan struct{})
	ended := t.running
	all.Go(func() {
		defer close(ended)
		t.Run(ctx)
	})
}
