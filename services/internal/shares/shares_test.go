package shares

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// log is of places that were given.
type log struct {
	t *testing.T
	p *Places

	mu    sync.Mutex
	order []string
	at    map[string][]time.Time
}

func newLog(t *testing.T, places int) *log {
	return &log{t: t, p: New(places), at: map[string][]time.Time{}}
}

// hold takes places for an owner, each for a second.
func (l *log) hold(owner string, times int) {
	for range times {
		go func() {
			release, err := l.p.Take(context.Background(), owner)
			if err != nil {
				l.t.Error(err)
				return
			}
			l.mu.Lock()
			l.order, l.at[owner] = append(l.order, owner), append(l.at[owner], time.Now())
			l.mu.Unlock()
			time.Sleep(time.Second)
			release()
			release()
		}()
	}
	synctest.Wait()
}

// TestAnOwnerOfManyRequestsDelaysNoOther has one want a thousand places before others want some.
func TestAnOwnerOfManyRequestsDelaysNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const places = 4
		l, began := newLog(t, places), time.Now()
		l.hold("a", 1000)
		if len(l.order) != places {
			t.Fatalf("%d places were given, want all %d while no other owner wants one", len(l.order), places)
		}
		l.hold("b", 3)
		l.hold("c", 1)
		time.Sleep(time.Hour)
		synctest.Wait()
		for owner, want := range map[string]time.Duration{"a": 250 * time.Second, "b": 2 * time.Second, "c": time.Second} {
			if last := slices.MaxFunc(l.at[owner], time.Time.Compare).Sub(began); last != want {
				t.Errorf("%s was given its last place after %v, want %v", owner, last, want)
			}
		}
		if len(l.at["a"]) != 1000 || l.p.free != places || len(l.p.owners) != 0 || len(l.p.line) != 0 {
			t.Errorf("%d were given, left behind: %+v", len(l.at["a"]), l.p)
		}
	})
}

func TestOfOnePlaceOwnersTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLog(t, 0)
		l.hold("a", 4)
		l.hold("b", 3)
		time.Sleep(time.Hour)
		synctest.Wait()
		if want := []string{"a", "b", "a", "b", "a", "b", "a"}; !slices.Equal(l.order, want) {
			t.Errorf("%q, want %q", l.order, want)
		}
	})
}

func TestWhoGivesUpWaitsNoLonger(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := New(1)
		release, err := p.Take(t.Context(), "a")
		if err != nil {
			t.Fatal(err)
		}
		if _, ok := p.TryTake("b"); ok {
			t.Error("a second place was given")
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := p.Take(ctx, "b"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v", err)
		}
		if _, err := p.Take(ctx, "b"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("after the end: %v", err)
		}
		release()
		if release, ok := p.TryTake("b"); !ok {
			t.Error("a free place was not given")
		} else {
			release()
		}
		if p.free != 1 || len(p.owners) != 0 || len(p.line) != 0 {
			t.Errorf("left behind: %+v", p)
		}
	})
}

func TestOwner(t *testing.T) {
	if got := Owner(t.Context()); got != "" {
		t.Errorf("%q without an owner", got)
	}
	if got := Owner(WithOwner(t.Context(), "a")); got != "a" {
		t.Errorf("%q", got)
	}
}
