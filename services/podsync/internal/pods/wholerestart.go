package pods

import (
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/microlet/microlet/services/podsync/internal/pod/decide"
)

const (
	// freeRestarts is how many restarts of the whole pod need not wait. A failure of the node causes no more than these.
	freeRestarts = 5
	// restartsForgotten is how long a restart of the whole pod counts, as the start of a container does.
	restartsForgotten = 10 * time.Minute
)

// wholeRestarts are the restarts of a whole pod: it gets another sandbox, or all of its containers restart. The
// back-off of its containers does not delay them, because it depends on the instances of a container, which such a
// restart gives up. A pod can cause any number of them, as its containers can end the process of its sandbox.
type wholeRestarts struct {
	count int
	last  time.Time
}

// delay is how long after the last restart the next one may come.
func (r *wholeRestarts) delay(longest time.Duration) time.Duration {
	if longest <= 0 {
		longest = decide.DefaultMaxBackoff
	}
	delay := time.Duration(0)
	for range r.count - freeRestarts + 1 {
		delay = min(max(2*delay, decide.InitialBackoff), longest)
	}
	return delay
}

// noteWholeRestart counts a restart of the whole pod.
func (w *worker) noteWholeRestart(p *v1.Pod) {
	r := &w.wholeRestarts
	if time.Since(r.last) > restartsForgotten {
		r.count = 0
	}
	r.count, r.last = r.count+1, time.Now()
	if delay := r.delay(w.deps.MaxBackoff); delay > 0 {
		w.deps.event(p, v1.EventTypeWarning, reasonBackOff, "Back-off %s restarting all of pod %s, whose sandbox has ended, "+
			"or whose containers have begun again, %d times", delay, podName(p), r.count)
	}
}

// holdWholeRestart returns why the whole pod may not restart yet, and for how long; nil if it may.
func (w *worker) holdWholeRestart(a *decide.Actions) (time.Duration, error) {
	r := &w.wholeRestarts
	if !isWholeRestart(a) || time.Since(r.last) > restartsForgotten {
		return 0, nil
	}
	delay := r.delay(w.deps.MaxBackoff)
	if wait := time.Until(r.last.Add(delay)); wait > 0 {
		return wait, reported("restart the whole pod", fmt.Errorf("back-off %s: it has begun again %d times", delay, r.count))
	}
	return 0, nil
}

// isWholeRestart reports whether the pod gets another sandbox, or all of its containers restart.
func isWholeRestart(a *decide.Actions) bool {
	return a.Sandbox != nil && a.Sandbox.Attempt > 0 || len(a.Reset) > 0
}
