package pods

import (
	"sync"
	"time"

	"github.com/microlet/microlet/services/internal/signal"
)

// notices have what happened to the pod reported at a certain time, unless the worker reads the runtime before. Several
// become one, and cost one timer, which stops when the worker reads the runtime.
type notices struct {
	// due is set when one may be due.
	due signal.Signal

	mu sync.Mutex
	// at is when the first notice is due; zero if there is none.
	at    time.Time
	timer *time.Timer
}

func newNotices() *notices { return &notices{due: signal.New()} }

// add adds a notice that is due after this time.
func (n *notices) add(after time.Duration) {
	n.mu.Lock()
	defer n.mu.Unlock()
	at := time.Now().Add(after)
	if !n.at.IsZero() && !at.Before(n.at) {
		return
	}
	n.at = at
	if n.timer == nil {
		n.timer = time.AfterFunc(after, n.due.Set)
		return
	}
	n.timer.Reset(after)
}

// clear drops all notices, because the worker reads the runtime.
func (n *notices) clear() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.at = time.Time{}
	if n.timer != nil {
		n.timer.Stop()
	}
}

// take drops all notices if one is due, and reports whether one was. Due may be set for a notice that was dropped.
func (n *notices) take() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.at.IsZero() || time.Now().Before(n.at) {
		return false
	}
	n.at = time.Time{}
	return true
}
