package inflight

import (
	"context"
	"errors"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

var (
	greedy = netip.MustParsePrefix("192.0.2.1/32")
	second = netip.MustParsePrefix("192.0.2.2/32")
	modest = netip.MustParsePrefix("192.0.2.3/32")
)

// hold asks for a place and holds it for a while; the returned function says how it went.
func hold(l *Limiter, wg *sync.WaitGroup, from netip.Prefix, during time.Duration) (after *time.Duration, err *error) {
	after, err = new(time.Duration), new(error)
	began := time.Now()
	wg.Go(func() {
		release, failed := l.Acquire(context.Background(), from)
		*after, *err = time.Since(began), failed
		if failed == nil {
			time.Sleep(during)
			release()
		}
	})
	synctest.Wait()
	return after, err
}

func TestOneAddressHasItsPart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := New(Limits{Total: 4, PerAddress: 2, Queue: 100, Wait: time.Minute})
		var wg sync.WaitGroup
		for range 50 {
			hold(l, &wg, greedy, time.Second)
		}
		if after, err := hold(l, &wg, modest, time.Second); *err != nil || *after != 0 {
			t.Errorf("another address waited %v: %v", *after, *err)
		}
		wg.Wait()
		if l.taken != 0 || len(l.sources)+len(l.turn) != 0 {
			t.Errorf("left behind: %d, %v, %v", l.taken, l.sources, l.turn)
		}
	})
}

func TestAddressesTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := New(Limits{Total: 2, PerAddress: 1, Queue: 100, Wait: time.Hour})
		var wg sync.WaitGroup
		for range 100 { // two addresses take all there is, and queue for more
			hold(l, &wg, greedy, time.Second)
			hold(l, &wg, second, time.Second)
		}
		after, err := hold(l, &wg, modest, time.Second)
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if *err != nil || *after == 0 || *after > 2*time.Second {
			t.Errorf("a third one waited %v behind 200 requests of two others: %v", *after, *err)
		}
		wg.Wait()
	})
}

func TestNoRequestWaitsForEver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := New(Limits{Total: 1, PerAddress: 1, Queue: 1, Wait: 5 * time.Second})
		var wg sync.WaitGroup
		hold(l, &wg, greedy, time.Minute)
		waited, err := hold(l, &wg, greedy, 0)
		if refused, err := hold(l, &wg, greedy, 0); !errors.Is(*err, ErrBusy) || *refused != 0 {
			t.Errorf("a third one: %v after %v", *err, *refused)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := l.Acquire(ctx, modest); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("who leaves: %v", err)
		}
		time.Sleep(5 * time.Second)
		synctest.Wait()
		if !errors.Is(*err, ErrBusy) || *waited != 5*time.Second {
			t.Errorf("who waited: %v after %v", *err, *waited)
		}
		wg.Wait()
		if after, err := hold(l, &wg, modest, 0); *err != nil || *after != 0 {
			t.Errorf("afterwards: %v after %v", *err, *after)
		}
		wg.Wait()
		if l.taken != 0 || len(l.sources)+len(l.turn) != 0 {
			t.Errorf("left behind: %d, %v, %v", l.taken, l.sources, l.turn)
		}
	})
}
