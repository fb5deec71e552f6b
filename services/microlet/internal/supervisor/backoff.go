package supervisor

import "time"

const (
	firstDelay = 100 * time.Millisecond
	lastDelay  = time.Second
	// goodLife is how long a process must have lived for its failures to be forgotten.
	goodLife = 2 * time.Second
)

// backoff says how long to wait before the next start: not at all the first time, since most ends
// are a kill or an upgrade, and then 0.1 s, doubling up to 1 s, for a process that ends again and
// again. It never ends, because nothing else would start the node's processes.
type backoff struct{ last time.Duration }

// next is asked once for each end, with how long the process lived.
func (b *backoff) next(lived time.Duration) time.Duration {
	if lived >= goodLife {
		b.last = 0
	}
	delay := b.last
	b.last = min(max(2*delay, firstDelay), lastDelay)
	return delay
}
