// Package signal wakes a goroutine that waits for something to change.
package signal

// Signal says that something has changed, and not what or how often: a signal that is not received yet is not doubled.
// Its receiver looks at all that may have changed. Make it with New, and receive from it to wait.
type Signal chan struct{}

// New returns a signal that is not set.
func New() Signal { return make(Signal, 1) }

// Set sets the signal. It never blocks.
func (s Signal) Set() {
	select {
	case s <- struct{}{}:
	default:
	}
}

// Clear drops the signal if it is set.
func (s Signal) Clear() {
	select {
	case <-s:
	default:
	}
}
