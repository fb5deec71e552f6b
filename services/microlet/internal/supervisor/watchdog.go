package supervisor

import (
	"math/rand/v2"
	"time"
)

const (
	// tick is the time between two looks of a keeper at the watchdog of its process, and between two rounds of the
	// supervisor's own loop. All look at the same time, so that the process wakes once for all looks.
	tick = time.Second

	// ownGap between two looks means that the supervisor itself stood still: it was stopped, or the
	// machine was. What a process sent meanwhile is unread, and its silence means nothing.
	ownGap = tick + 2*time.Second
)

// phase sets this process's ticks apart from those of other nodes.
var phase = rand.N(tick)

// untilLook is the time from now to the next look of all.
func untilLook(now time.Time) time.Duration { return tick - (time.Duration(now.UnixNano())+phase)%tick }

// watchdog judges the silence of one process. Its clock is what it is given.
type watchdog struct {
	limit    time.Duration // 0: off
	deadline time.Time
	looked   time.Time
	heard    bool // it has been ready
}

func newWatchdog(limit, start time.Duration, now time.Time) *watchdog {
	return &watchdog{limit: limit, deadline: now.Add(max(start, limit)), looked: now}
}

// ready begins the regular watch.
func (w *watchdog) ready(now time.Time) { w.deadline, w.heard = now.Add(w.limit), true }

// quiet reports whether the process has given no sign of life for a while, as far as is known: half the time after
// which it counts as hung, twice the time between its signs.
func (w *watchdog) quiet(now time.Time) bool {
	return w.limit == 0 || !w.heard || now.After(w.deadline.Add(-w.limit/2))
}

// fed puts the deadline off, never forward.
func (w *watchdog) fed(now time.Time) {
	if d := now.Add(w.limit); d.After(w.deadline) {
		w.deadline = d
	}
}

// wait is the time from now to the next look: that of all, or the deadline if it comes before.
func (w *watchdog) wait(now time.Time) time.Duration {
	if left := w.deadline.Sub(now); w.limit != 0 && left >= 0 {
		return min(untilLook(now), left+time.Millisecond) // expired is after the deadline
	}
	return untilLook(now)
}

// off ends the watch: the process said that it stops, or was asked to.
func (w *watchdog) off() { w.limit = 0 }

// expired reports whether the process has been silent for too long.
func (w *watchdog) expired(now time.Time) bool {
	gap := now.Sub(w.looked)
	w.looked = now
	if w.limit == 0 {
		return false
	}
	if gap > ownGap {
		w.fed(now)
	}
	return now.After(w.deadline)
}
