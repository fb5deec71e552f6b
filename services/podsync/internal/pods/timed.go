package pods

import (
	"context"
	"sync"
	"time"
)

// timed is work of a worker that is done when it is due, one at a time. It has a goroutine only while it is done, so
// that a pod at rest needs no more than a timer. Its methods may be called from any goroutine.
type timed struct {
	mu sync.Mutex
	// at is when the work is due; zero if it is not.
	at    time.Time
	timer *time.Timer
	// start starts the goroutine; nil before begin. running is that goroutine, or nil.
	start   func() *task
	running *task
	ended   bool
}

// begin has the work done from now on, as one of these tasks. It reports whether it had not begun before. What was due
// before is done at once.
func (t *timed) begin(ctx context.Context, of *tasks, do func(context.Context)) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.start != nil || t.ended {
		return false
	}
	t.start = func() *task {
		return of.begin(ctx, func(ctx context.Context) {
			for t.take() {
				do(ctx)
			}
		}, nil)
	}
	t.arm()
	return true
}

// due has the work done after this time, or earlier if it is due earlier. Several calls become one.
func (t *timed) due(after time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	at := time.Now().Add(after)
	if t.ended || !t.at.IsZero() && !at.Before(t.at) {
		return
	}
	t.at = at
	t.arm()
}

// clear makes the work not due. It does not wait for work that is being done.
func (t *timed) clear() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.disarm()
}

// cancel ends the work for good, and does not wait.
func (t *timed) cancel() { t.stop().cancelIfAny() }

// end ends the work for good, and waits for its end.
func (t *timed) end() { t.stop().end() }

// stop has no more work begin, and returns what is being done.
func (t *timed) stop() *task {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.ended = true
	t.disarm()
	return t.running
}

// arm sets the timer. The caller holds mu.
func (t *timed) arm() {
	switch {
	case t.start == nil || t.at.IsZero():
	case t.timer == nil:
		t.timer = time.AfterFunc(time.Until(t.at), t.ring)
	default:
		t.timer.Reset(time.Until(t.at))
	}
}

// disarm makes the work not due. The caller holds mu.
func (t *timed) disarm() {
	t.at = time.Time{}
	if t.timer != nil {
		t.timer.Stop()
	}
}

// ring starts the goroutine, unless it runs and looks at the time itself. The timer may ring for what was cleared.
func (t *timed) ring() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.running == nil && t.isDue() {
		t.running = t.start()
	}
}

// take reports whether the work is due, which it is not any more then. The goroutine ends if it is not.
func (t *timed) take() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.isDue() {
		t.at = time.Time{}
		return true
	}
	if !t.ended {
		t.running = nil
	}
	return false
}

func (t *timed) isDue() bool { return !t.at.IsZero() && !time.Now().Before(t.at) }
