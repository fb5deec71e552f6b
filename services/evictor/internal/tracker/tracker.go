// Package tracker knows since when thresholds are met, which conditions follow, and for which thresholds pods must go.
//
// It is the kubelet's rule: a soft threshold waits for its grace period, a met threshold is over when its minimum
// reclaim is free too, and a condition stays for the transition period after its last cause.
package tracker

import (
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/microlet/microlet/services/evictor/internal/signal"
	"github.com/microlet/microlet/services/evictor/internal/threshold"
)

// met is a threshold since when it is met.
type met struct {
	threshold.Threshold
	since time.Time
}

// Tracker is for one goroutine.
type Tracker struct {
	transition time.Duration
	met        []met
	// unresolved are the thresholds for which pods had to go when it was last asked.
	unresolved []threshold.Threshold
	lastMet    map[v1.NodeConditionType]time.Time
	acted      map[signal.Signal]time.Time
}

// New returns a Tracker; a condition stays for transition after its last cause.
func New(transition time.Duration) *Tracker {
	return &Tracker{
		transition: transition, lastMet: map[v1.NodeConditionType]time.Time{}, acted: map[signal.Signal]time.Time{},
	}
}

// Adopt takes over when a condition was met last, from before a restart. What lies in the future is from another clock.
func (t *Tracker) Adopt(c v1.NodeConditionType, last, now time.Time) {
	if !last.After(now) && last.After(t.lastMet[c]) {
		t.lastMet[c] = last
	}
}

// Update takes observations in, and returns the thresholds for which pods must go, the most urgent first. A threshold
// is not among them if its signal was not read since the last call of Acted: the effect is not known yet.
func (t *Tracker) Update(all []threshold.Threshold, seen threshold.Observations, now time.Time) []threshold.Threshold {
	current := threshold.Met(all, seen, false)
	for _, u := range threshold.Met(t.unresolved, seen, true) {
		if !slices.ContainsFunc(current, u.Same) {
			current = append(current, u)
		}
	}
	before := t.met
	t.met, t.unresolved = nil, nil
	var due []threshold.Threshold
	for _, c := range current {
		since := now
		if i := slices.IndexFunc(before, func(m met) bool { return m.Same(c) }); i >= 0 {
			since = before[i].since
		}
		t.met = append(t.met, met{c, since})
		t.lastMet[c.Signal.Condition()] = now
		if now.Sub(since) < c.Grace {
			continue
		}
		t.unresolved = append(t.unresolved, c)
		if seen[c.Signal].Time.After(t.acted[c.Signal]) {
			due = append(due, c)
		}
	}
	slices.SortStableFunc(due, func(a, b threshold.Threshold) int { return urgency(a) - urgency(b) })
	return due
}

// Acted says that what is done now is done for what was seen.
func (t *Tracker) Acted(seen threshold.Observations) {
	for s, o := range seen {
		t.acted[s] = o.Time
	}
}

// urgency puts memory before everything else, as the kubelet does.
func urgency(t threshold.Threshold) int {
	if t.Signal.Resource() == v1.ResourceMemory {
		return 0
	}
	return 1
}

// LastMet returns when a threshold of the condition was met last; zero if it never was.
func (t *Tracker) LastMet(c v1.NodeConditionType) time.Time { return t.lastMet[c] }

// Under says whether the node has the condition.
func (t *Tracker) Under(c v1.NodeConditionType, now time.Time) bool {
	last := t.lastMet[c]
	return !last.IsZero() && now.Sub(last) < t.transition || slices.ContainsFunc(t.met, func(m met) bool {
		return m.Signal.Condition() == c
	})
}
