package diskusage

import "time"

// budget is a token bucket of entries. What a slice does not use is given back.
type budget struct {
	perMinute int
	// slice is how many entries a slice may look at: a second's worth.
	slice int
	// left may not exceed burst: ten seconds' worth.
	left, burst float64
	at          time.Time
	resting     time.Time
}

const (
	minSlice = 64
	maxSlice = 4096
)

func newBudget(perMinute int, now time.Time) budget {
	b := budget{perMinute: perMinute, slice: min(max(perMinute/60, minSlice), maxSlice), at: now}
	b.burst = max(float64(perMinute)/6, float64(b.slice))
	b.left = b.burst
	return b
}

// allows reports whether there is enough for a slice.
func (b *budget) allows(now time.Time) bool {
	b.left = min(b.left+now.Sub(b.at).Minutes()*float64(b.perMinute), b.burst)
	b.at = now
	return b.left >= float64(b.slice) && !now.Before(b.resting)
}

// take grants a slice.
func (b *budget) take() int {
	b.left -= float64(b.slice)
	return b.slice
}

// give returns what was not used.
func (b *budget) give(entries int) { b.left += float64(entries) }

// rest grants nothing for a time.
func (b *budget) rest(now time.Time, d time.Duration) { b.resting = now.Add(d) }

// next is when there is enough for a slice.
func (b *budget) next() time.Time {
	at := b.at
	if missing := float64(b.slice) - b.left; missing > 0 {
		at = at.Add(time.Duration(missing/float64(b.perMinute)*float64(time.Minute)) + time.Nanosecond)
	}
	if at.Before(b.resting) {
		return b.resting
	}
	return at
}
