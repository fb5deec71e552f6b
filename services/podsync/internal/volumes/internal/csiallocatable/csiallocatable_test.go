package csiallocatable

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	storagev1 "k8s.io/api/storage/v1"
)

// signal reports that something has changed.
type signal struct {
	mu sync.Mutex
	ch chan struct{}
}

func (s *signal) Changed() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ch == nil {
		s.ch = make(chan struct{})
	}
	return s.ch
}

func (s *signal) change(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
	if s.ch != nil {
		close(s.ch)
		s.ch = nil
	}
}

// drivers count how often each is asked.
type drivers struct {
	signal
	asked map[string]int
	err   error
	hang  bool
}

func (d *drivers) Names() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Collect(maps.Keys(d.asked))
}

func (d *drivers) Refresh(ctx context.Context, driver string) error {
	d.mu.Lock()
	d.asked[driver]++
	d.mu.Unlock()
	if d.hang {
		<-ctx.Done()
	}
	return d.err
}

func (d *drivers) times(driver string) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.asked[driver]
}

type objects struct {
	signal
	periods map[string]*int64
}

func (o *objects) Watched(driver string) *storagev1.CSIDriver {
	o.mu.Lock()
	defer o.mu.Unlock()
	period, ok := o.periods[driver]
	if !ok {
		return nil
	}
	return &storagev1.CSIDriver{Spec: storagev1.CSIDriverSpec{NodeAllocatableUpdatePeriodSeconds: period}}
}

func run(t *testing.T, d *drivers, o *objects) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- (&Updater{Drivers: d, Objects: o, Log: slog.New(slog.DiscardHandler)}).Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func TestADriverIsAskedAsOftenAsItsObjectSays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &drivers{asked: map[string]int{"each10s": 0, "never": 0, "unknown": 0}, err: errors.New("not now")}
		o := &objects{periods: map[string]*int64{"each10s": new(int64(10)), "never": nil, "elsewhere": new(int64(10))}}
		run(t, d, o)
		time.Sleep(35 * time.Second)
		if got := d.times("each10s"); got != 3 {
			t.Errorf("asked %d times in 35 s", got)
		}
		for _, driver := range []string{"never", "unknown", "elsewhere"} {
			if got := d.times(driver); got != 0 {
				t.Errorf("%s was asked %d times", driver, got)
			}
		}
	})
}

func TestChangesAreFollowed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &drivers{asked: map[string]int{}}
		o := &objects{periods: map[string]*int64{"d": new(int64(10))}}
		run(t, d, o)
		time.Sleep(time.Minute)
		d.change(func() { d.asked["d"] = 0 })
		time.Sleep(15 * time.Second)
		if got := d.times("d"); got != 1 {
			t.Errorf("asked %d times in 15 s after it came", got)
		}
		o.change(func() { o.periods["d"] = new(int64(60)) })
		time.Sleep(65 * time.Second)
		if got := d.times("d"); got != 2 {
			t.Errorf("asked %d times, and one more was due", got)
		}
		d.change(func() { delete(d.asked, "d") })
		time.Sleep(time.Hour)
		d.change(func() { d.asked["d"] = 0 })
		o.change(func() { o.periods["d"] = nil })
		time.Sleep(time.Hour)
		if got := d.times("d"); got != 0 {
			t.Errorf("asked %d times after its object says nothing any more", got)
		}
	})
}

// A driver that hangs is asked one question at a time, and its end is waited for.
func TestADriverThatHangsKeepsNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &drivers{asked: map[string]int{"d": 0}, hang: true}
		run(t, d, &objects{periods: map[string]*int64{"d": new(int64(10))}})
		time.Sleep(timeout + 15*time.Second)
		if got := d.times("d"); got != 2 {
			t.Errorf("asked %d times", got)
		}
	})
}
