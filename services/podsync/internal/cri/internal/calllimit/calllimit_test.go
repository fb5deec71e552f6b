package calllimit

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
)

func newTestLimiter(t *testing.T, limits Limits) *Limiter {
	t.Helper()
	l, err := New(limits, nil)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// load runs calls against a limiter and reports in which order they began.
type load struct {
	l     *Limiter
	mu    sync.Mutex
	begun []string
	wg    sync.WaitGroup
}

func (w *load) call(ctx context.Context, name string, class Class, takes time.Duration) {
	w.wg.Add(1)
	go func() {
		defer w.wg.Done()
		done, err := w.l.Acquire(ctx, class)
		if err != nil {
			return
		}
		defer done()
		w.mu.Lock()
		w.begun = append(w.begun, name)
		w.mu.Unlock()
		time.Sleep(takes)
	}()
	synctest.Wait() // so that the order of asking is the order of these calls
}

func (w *load) expect(t *testing.T, want ...string) {
	t.Helper()
	synctest.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	if !slices.Equal(w.begun, want) {
		t.Fatalf("begun %v, want %v", w.begun, want)
	}
}

func TestLimiterIsFirstComeFirstServed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &load{l: newTestLimiter(t, Limits{Slots: 2})}
		// No two end at the same moment, so that each slot has one taker.
		for i, name := range []string{"a", "b", "c", "d", "e"} {
			w.call(t.Context(), name, Usual, time.Second+time.Duration(i)*100*time.Millisecond)
		}
		w.expect(t, "a", "b")
		if n := testutil.ToFloat64(w.l.waiting); n != 3 {
			t.Fatalf("%v wait, want 3", n)
		}
		time.Sleep(time.Second)
		w.expect(t, "a", "b", "c")
		time.Sleep(100 * time.Millisecond)
		w.expect(t, "a", "b", "c", "d")
		w.wg.Wait()
		w.expect(t, "a", "b", "c", "d", "e")
		if n := testutil.ToFloat64(w.l.inFlight); n != 0 {
			t.Fatalf("%v in flight at the end", n)
		}
	})
}

func TestLimiterHungCallsGiveTheirSlotsBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &load{l: newTestLimiter(t, Limits{Slots: 2})}
		w.call(t.Context(), "hung1", Usual, time.Hour)
		w.call(t.Context(), "hung2", Usual, time.Hour)
		w.call(t.Context(), "next", Usual, time.Second)
		time.Sleep(4900 * time.Millisecond)
		w.expect(t, "hung1", "hung2")
		time.Sleep(200 * time.Millisecond)
		w.expect(t, "hung1", "hung2", "next")
		w.wg.Wait()
		if n := testutil.ToFloat64(w.l.givenBack); n != 2 {
			t.Fatalf("%v slots given back, want 2", n)
		}
		// A slot is freed once only, though its holder ended much later.
		if w.l.normal != 0 || w.l.reserved != 0 {
			t.Fatalf("%d and %d slots in use at the end", w.l.normal, w.l.reserved)
		}
	})
}

func TestLimiterUrgentHaveAReserve(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &load{l: newTestLimiter(t, Limits{Slots: 1, Reserve: 1})}
		w.call(t.Context(), "a", Usual, 3*time.Second)
		w.call(t.Context(), "b", Usual, time.Second)
		w.call(t.Context(), "cni", Urgent, 2*time.Second)
		w.expect(t, "a", "cni")
		w.call(t.Context(), "proxy", Urgent, time.Second)
		w.expect(t, "a", "cni")
		time.Sleep(2 * time.Second)
		w.expect(t, "a", "cni", "proxy")
		w.wg.Wait()
		w.expect(t, "a", "cni", "proxy", "b")
	})
}

func TestLimiterObeysContexts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &load{l: newTestLimiter(t, Limits{Slots: 1})}
		w.call(t.Context(), "a", Usual, 2*time.Second)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		begun := time.Now()
		if _, err := w.l.Acquire(ctx, Usual); !errors.Is(err, context.DeadlineExceeded) ||
			time.Since(begun) != time.Second {
			t.Fatalf("after %v: %v", time.Since(begun), err)
		}
		w.call(t.Context(), "b", Usual, time.Second)
		time.Sleep(time.Second)
		w.expect(t, "a", "b")
		w.wg.Wait()
	})
}

func TestLimiterRefusesNegativeLimits(t *testing.T) {
	if _, err := New(Limits{Slots: -1}, nil); err == nil {
		t.Fatal("a negative bound was taken")
	}
}

func TestLimiterGoesOnWithWhatIsBegun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &load{l: newTestLimiter(t, Limits{Slots: 1})}
		w.call(t.Context(), "sandbox1", Usual, time.Second)
		w.call(t.Context(), "sandbox2", Usual, time.Second)
		w.call(t.Context(), "create1", Begun, time.Second)
		w.wg.Wait()
		w.expect(t, "sandbox1", "create1", "sandbox2")
	})
}

// TestPodsThatGoOnForEverKeepNoOthersOut: pods with thousands of init containers make one call after the other.
func TestPodsThatGoOnForEverKeepNoOthersOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newTestLimiter(t, Limits{})
		ctx, cancel := context.WithCancel(t.Context())
		var all sync.WaitGroup
		calls := 0
		for range 20 {
			all.Go(func() {
				for {
					done, err := l.Acquire(ctx, Begun)
					if err != nil {
						return
					}
					l.mu.Lock()
					calls++
					l.mu.Unlock()
					time.Sleep(300 * time.Millisecond)
					done()
				}
			})
		}
		synctest.Wait()
		for class, most := range map[Class]time.Duration{Usual: 11 * time.Second, Idle: 31 * time.Second} {
			all.Go(func() {
				limited, cancel := context.WithTimeout(ctx, time.Minute)
				defer cancel()
				began := time.Now()
				done, err := l.Acquire(limited, class)
				if took := time.Since(began); err != nil || took > most {
					t.Errorf("a call of class %d took %v, %v", class, took, err)
				}
				if err == nil {
					done()
				}
			})
		}
		time.Sleep(time.Minute)
		cancel()
		all.Wait()
		if calls < 700 {
			t.Errorf("%d calls went on with pods, which leaves slots unused", calls)
		}
	})
}

func TestIdleCallsGoLastAndOneAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &load{l: newTestLimiter(t, Limits{Slots: 3})}
		for _, name := range []string{"tidy1", "tidy2"} {
			w.call(t.Context(), name, Idle, time.Second)
		}
		w.call(t.Context(), "a", Usual, 2*time.Second)
		w.call(t.Context(), "b", Begun, 2*time.Second)
		w.call(t.Context(), "c", Usual, 2*time.Second)
		w.expect(t, "tidy1", "a", "b") // two slots are left for the others, and the third is taken by no second idle call
		time.Sleep(time.Second)
		w.expect(t, "tidy1", "a", "b", "c")
		time.Sleep(time.Second)
		w.expect(t, "tidy1", "a", "b", "c", "tidy2")
		w.wg.Wait()
		// One that hangs gives its slot back like any other.
		hung := &load{l: newTestLimiter(t, Limits{Slots: 1, SlotTimeout: 5 * time.Second})}
		hung.call(t.Context(), "hung", Idle, time.Hour)
		hung.call(t.Context(), "next", Idle, time.Second)
		time.Sleep(5 * time.Second)
		hung.expect(t, "hung", "next")
		hung.wg.Wait()
	})
}
