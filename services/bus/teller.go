package bus

import "sync"

// untold bounds what a teller keeps: there are fewer replicas than that.
const untold = 64

// teller publishes who is gone. The bus's own client may connect after others have come and gone: what
// could not be told is told then. It is a hint, so no more is done: who misses it sees the heartbeat grow old.
type teller struct {
	publish func(subject string) error

	mu   sync.Mutex
	kept []string
}

func (t *teller) tell(subject string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.publish(subject) != nil && len(t.kept) < untold {
		t.kept = append(t.kept, subject)
	}
}

// rest tells what was kept.
func (t *teller) rest() {
	t.mu.Lock()
	defer t.mu.Unlock()
	kept := t.kept
	t.kept = nil
	for i, subject := range kept {
		if t.publish(subject) != nil {
			t.kept = append(t.kept, kept[i:]...)
			return
		}
	}
}
