package decide

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"

	"github.com/microlet/microlet/services/podsync/internal/pod"
)

// crash lets a container end at once after each start and returns the pauses between.
func crash(t *testing.T, b *Backoff, times int, runs time.Duration) []time.Duration {
	t.Helper()
	p := testPod(v1.RestartPolicyAlways, "a")
	now := t0
	var pauses []time.Duration
	for range times {
		c := ctr("1", "a", dead, 1)
		c.Finished = now
		a := Decide(Input{Pod: p, State: ready(c), Now: now, Backoff: b})
		if len(a.Wait) == 1 {
			if a.Wake.After(a.Wait[0].Until) {
				t.Fatalf("wake at %s, but the wait ends at %s", a.Wake, a.Wait[0].Until)
			}
			now = a.Wake
			a = Decide(Input{Pod: p, State: ready(c), Now: now, Backoff: b})
		}
		if len(a.Start) != 1 {
			t.Fatalf("no start at the end of the wait: %+v", a)
		}
		pauses = append(pauses, now.Sub(c.Finished))
		b.Started(a.Start[0], now)
		now = now.Add(runs)
	}
	return pauses
}

func TestCrashLoop(t *testing.T) {
	s := time.Second
	if diff := cmp.Diff([]time.Duration{0, 10 * s, 20 * s, 40 * s, 80 * s, 160 * s, 300 * s, 300 * s},
		crash(t, NewBackoff(0), 8, s)); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]time.Duration{0, 4 * s, 4 * s}, crash(t, NewBackoff(4*s), 3, s)); diff != "" {
		t.Error(diff)
	}
	for _, longest := range []time.Duration{0, s, 60 * s} {
		if diff := cmp.Diff([]time.Duration{0, 0, 0}, crash(t, NewBackoff(longest), 3, 601*s)); diff != "" {
			t.Errorf("with a maximum of %s, more than ten minutes of life do not reset the backoff: %s", longest, diff)
		}
	}
	if diff := cmp.Diff([]time.Duration{0, s, s}, crash(t, NewBackoff(s), 3, 3*s)); diff != "" {
		t.Error("a short maximum shortens the life that resets the backoff:", diff)
	}
	if diff := cmp.Diff([]time.Duration{0, 10 * s, 20 * s, 20 * s}, crash(t, NewBackoff(20*s), 4, 580*s)); diff != "" {
		t.Error("a short maximum shortens the life that resets the backoff:", diff)
	}
}

// TestBackoffEndsTenMinutesAfterTheStart: what runs for nearly as long does not wait for up to five minutes each time.
func TestBackoffEndsTenMinutesAfterTheStart(t *testing.T) {
	s, after := time.Second, time.Nanosecond
	if diff := cmp.Diff([]time.Duration{0, 10 * s, 15*s + after, 10 * s, 15*s + after},
		crash(t, NewBackoff(0), 5, 585*s)); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]time.Duration{0, after, after}, crash(t, NewBackoff(0), 3, 600*s)); diff != "" {
		t.Error("ten minutes are not more than ten minutes:", diff)
	}
	b := NewBackoff(0)
	for n := range 6 {
		b.Started(Start{Name: "a", Previous: t0}, t0.Add(time.Duration(n)*s))
	}
	c := ctr("1", "a", dead, 1)
	c.Finished = t0.Add(400 * s)
	in := Input{Pod: testPod(v1.RestartPolicyAlways, "a"), State: ready(c), Now: c.Finished, Backoff: b}
	a := Decide(in)
	if len(a.Wait) != 1 || !a.Wait[0].Until.Equal(t0.Add(700*s)) || !a.Wake.Equal(t0.Add(605*s+after)) {
		t.Fatalf("waits %+v, wakes at %s", a.Wait, a.Wake)
	}
	in.Now = a.Wake.Add(-after)
	if a := Decide(in); len(a.Wait) != 1 {
		t.Errorf("ten minutes are not more than ten minutes: %+v", a)
	}
}

func TestBackoffMessage(t *testing.T) {
	b := NewBackoff(0)
	b.Started(Start{Name: "a", Previous: t0}, t0)
	c := ctr("1", "a", dead, 1)
	c.Finished = t0.Add(time.Second)
	a := Decide(Input{
		Pod:     testPod(v1.RestartPolicyAlways, "a"),
		State:   ready(c),
		Now:     t0.Add(2 * time.Second),
		Backoff: b,
	})
	want := []Wait{{
		Name:    "a",
		Until:   t0.Add(11 * time.Second),
		Delay:   10 * time.Second,
		Message: "back-off 10s restarting failed container=a pod=web_shop(u1)",
	}}
	if diff := cmp.Diff(want, a.Wait); diff != "" {
		t.Error(diff)
	}
}

func TestChangedDefinitionDoesNotWait(t *testing.T) {
	b := NewBackoff(0)
	b.Started(Start{Name: "a", Previous: t0}, t0)
	c := ctr("1", "a", dead, 1)
	c.Finished = t0.Add(time.Second)
	a := Decide(Input{
		Pod: testPod(v1.RestartPolicyAlways, "a"), State: ready(c), Now: t0.Add(2 * time.Second), Backoff: b,
		Hash: func(*v1.Container) uint64 { return 1 },
	})
	if len(a.Start) != 1 || !a.Start[0].Changed {
		t.Errorf("a container whose definition was mended waits for the old one's backoff: %+v", a)
	}
}

func TestAdopt(t *testing.T) {
	instances := func(restarts int32, pause time.Duration) *pod.State {
		newest, before := ctr("2", "a", dead, 1), ctr("1", "a", dead, 1)
		newest.RestartCount = restarts
		before.Finished = t0
		newest.Started = t0.Add(pause)
		newest.Finished = newest.Started.Add(time.Second)
		return ready(newest, before)
	}
	tests := map[string]struct {
		restarts int32
		pause    time.Duration
		want     time.Duration
	}{
		"first restart":                   {1, 0, 10 * time.Second},
		"second restart":                  {2, 10 * time.Second, 20 * time.Second},
		"third restart":                   {3, 20 * time.Second, 40 * time.Second},
		"at the maximum":                  {20, 301 * time.Second, 300 * time.Second},
		"podsync was not there":           {1, time.Hour, 10 * time.Second},
		"many restarts, but never looped": {50, 0, 10 * time.Second},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			b, st := NewBackoff(0), instances(test.restarts, test.pause)
			b.Adopt(st)
			a := Decide(Input{
				Pod:     testPod(v1.RestartPolicyAlways, "a"),
				State:   st,
				Now:     st.Containers[0].Finished,
				Backoff: b,
			})
			if len(a.Wait) != 1 || a.Wait[0].Delay != test.want {
				t.Errorf("waits %+v, want one of %s", a.Wait, test.want)
			}
		})
	}
}

// TestAdoptAfterTheClockWasSetBack finds containers that ran in the future. They do not wait for it.
func TestAdoptAfterTheClockWasSetBack(t *testing.T) {
	newest, before := ctr("2", "a", dead, 1), ctr("1", "a", dead, 1)
	newest.RestartCount = 5
	before.Finished = t0
	newest.Started = t0.Add(80 * time.Second)
	newest.Finished = newest.Started.Add(time.Second)
	b, st := NewBackoff(0), ready(newest, before)
	b.Adopt(st)
	now := t0.Add(-24 * 365 * time.Hour)
	a := Decide(Input{Pod: testPod(v1.RestartPolicyAlways, "a"), State: st, Now: now, Backoff: b})
	if len(a.Start) != 1 {
		t.Errorf("waits %+v until %s", a.Wait, a.Wake)
	}
}
