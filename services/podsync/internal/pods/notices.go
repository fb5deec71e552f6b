package pods

import (
	"sync"
	"time"

	"github.com/microlet/microlet/services/internal/signal"
)

// notices say when something is to be reported that happened to the pod and that the worker has not looked at since.
// Several become one, and none costs more than a timer that is stopped once the worker has looked.
type notices struct {
	// due is set when one may be due.
	due signal.Signal

	mu sync.Mutex
	// at is when the first is due; zero if there is none.
	at    time.Time
	timer *time.Timer
}

func newNotices() *notices { return &notices{due: signal.New()} }

// add adds one that is due after this time.
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

// clear drops all: the worker looks at the pod.
func (n *notices) clear() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.at = time.Time{}
	if n.timer != nil {
		n.timer.Stop()
	}
}

// take drops all if one is due, and reports whether one was. Due may be set for one that the worker has dropped.
func (n *notices) take() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.at.IsZero() || time.Now().Before(n.at) {
		return false
	}
	n.at = time.Time{}
	return true
}
