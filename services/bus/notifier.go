package bus

import "sync"

// maxUnsent bounds what a notifier keeps: there are fewer replicas than that.
const maxUnsent = 64

// notifier publishes which replicas have lost their connection. The bus's own client may connect after others have come
// and gone: what could not be published is published then. An event is a hint, so no more is done: a reader that misses
// it sees the heartbeat grow old.
type notifier struct {
	publish func(subject string) error

	mu     sync.Mutex
	unsent []string
}

func (n *notifier) notify(subject string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.publish(subject) != nil && len(n.unsent) < maxUnsent {
		n.unsent = append(n.unsent, subject)
	}
}

// retry publishes what could not be published before.
func (n *notifier) retry() {
	n.mu.Lock()
	defer n.mu.Unlock()
	unsent := n.unsent
	n.unsent = nil
	for i, subject := range unsent {
		if n.publish(subject) != nil {
			n.unsent = append(n.unsent, unsent[i:]...)
			return
		}
	}
}
