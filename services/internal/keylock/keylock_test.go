package keylock

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

func TestOneHoldsAKeyAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l Locks[string]
		var all sync.WaitGroup
		holders, began := 0, time.Now()
		for range 10 {
			all.Go(func() {
				h, err := l.Lock(t.Context(), "a")
				if err != nil {
					t.Error(err)
					return
				}
				defer h.Unlock()
				if holders++; holders != 1 { // the race detector watches it, too
					t.Errorf("%d hold it", holders)
				}
				time.Sleep(time.Second)
				holders--
			})
		}
		all.Wait()
		if took := time.Since(began); took != 10*time.Second {
			t.Errorf("10 holders of a second each took %s", took)
		}
		if len(l.held) != 0 {
			t.Errorf("locks that no caller holds are kept: %v", l.held)
		}
	})
}

func TestKeysAreIndependent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l Locks[string]
		for _, key := range []string{"a", "b"} {
			if _, err := l.Lock(t.Context(), key); err != nil {
				t.Error(err)
			}
		}
	})
}

func TestACallerWaitsUntilItsContextEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l Locks[string]
		h, err := l.Lock(t.Context(), "a")
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		began := time.Now()
		_, err = l.Lock(ctx, "a")
		if !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != time.Minute ||
			!strings.HasPrefix(err.Error(), "another call is under way there: ") {
			t.Errorf("%v after %s", err, time.Since(began))
		}
		h.Unlock()
		if _, err := l.Lock(ctx, "a"); err != nil {
			t.Errorf("a free lock is not waited for, whatever the context is: %v", err)
		}
	})
}

func TestNoCallerWaitsForAHolderThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l Locks[string]
		h, err := l.Lock(t.Context(), "a")
		if err != nil {
			t.Fatal(err)
		}
		if h.Hangs() {
			t.Error("it hangs")
		}
		const want = "it does not answer: a call that began 1m0s ago still hangs there"
		var all sync.WaitGroup
		all.Go(func() { // one that waits already
			if _, err := l.Lock(t.Context(), "a"); err == nil || err.Error() != want {
				t.Error(err)
			}
		})
		time.Sleep(time.Minute)
		h.Hang()
		h.Hang()
		all.Wait()
		if _, err := l.Lock(t.Context(), "a"); err == nil || err.Error() != want || !h.Hangs() {
			t.Error(err)
		}
		h.Unlock()
		if _, err := l.Lock(t.Context(), "a"); err != nil {
			t.Errorf("after it: %v", err)
		}
	})
}

// TestASecondUnlockTakesTheLockFromNoOther: the key is another holder's by then.
func TestASecondUnlockTakesTheLockFromNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l Locks[string]
		first, err := l.Lock(t.Context(), "a")
		if err != nil {
			t.Fatal(err)
		}
		first.Unlock()
		if _, err := l.Lock(t.Context(), "a"); err != nil {
			t.Fatal(err)
		}
		first.Unlock()
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := l.Lock(ctx, "a"); !errors.Is(err, context.Canceled) {
			t.Errorf("two hold it: %v", err)
		}
	})
}
