package measurement

import (
	"maps"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

const (
	// turn is how long a measurement may take that is to leave its place to others in time. One that takes longer is long.
	turn = time.Minute
	// maxLong is how many of those under way may be long, so that the others never wait longer than turn.
	maxLong = maxUnder - 1
	// keptLong is how long a pod counts as one that takes long to measure.
	keptLong = time.Hour
	// keptWaiting is how long a pod waits that is not asked for again.
	keptWaiting = time.Minute
)

// turns says which pod is measured next: the one that was asked for first, for which there is a place. It belongs to a
// Measurer. The caller holds the lock.
type turns struct {
	waiting []waiter
	// long are the pods that took long to measure last time, and until when they count as such.
	long map[types.UID]time.Time
}

// waiter is a pod that waits.
type waiter struct {
	uid types.UID
	// asked is when it was asked for last.
	asked time.Time
}

// mayBegin reports whether it is a pod's turn, given how many of all measurements under way are quick and long. If it
// is not, the pod waits.
func (t *turns) mayBegin(uid types.UID, quick, long int) bool {
	now := time.Now()
	maps.DeleteFunc(t.long, func(_ types.UID, until time.Time) bool { return now.After(until) })
	at := slices.IndexFunc(t.waiting, func(w waiter) bool { return w.uid == uid })
	if at < 0 {
		at = len(t.waiting)
		t.waiting = append(t.waiting, waiter{uid: uid})
	}
	t.waiting[at].asked = now
	t.waiting = slices.DeleteFunc(t.waiting, func(w waiter) bool { return now.Sub(w.asked) > keptWaiting })
	for i, w := range t.waiting {
		isLong := t.isLong(w.uid)
		fits := quick+long < maxUnder && (!isLong || long < maxLong)
		if w.uid == uid {
			if fits {
				t.waiting = slices.Delete(t.waiting, i, i+1)
			}
			return fits
		}
		if fits && isLong {
			long++
		} else if fits {
			quick++
		}
	}
	return false
}

func (t *turns) isLong(uid types.UID) bool { return !t.long[uid].IsZero() }

// late notes that a measurement is long. If enough others are, it ends, and the pod waits for its next turn.
func (m *Measurer) late(c *call, end func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.under[c.pod.UID] != c {
		return
	}
	m.turns.long[c.pod.UID] = time.Now().Add(keptLong)
	if _, long := m.counts(); long < maxLong || c.long {
		c.long = true
		return
	}
	c.gaveWay = true
	end()
}

// counts returns how many measurements are under way. The lock is held.
func (m *Measurer) counts() (quick, long int) {
	for _, c := range m.under {
		if c.long {
			long++
		} else {
			quick++
		}
	}
	return quick, long
}
