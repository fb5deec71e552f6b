package apiclient

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/microlet/microlet/services/internal/shares"
)

// TestRequestsOfOneNamespaceHoldUpNoOther: pods of one namespace ask for more than comes through in a minute.
func TestRequestsOfOneNamespaceHoldUpNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(50, 100)
		ask := func(owner string) (time.Duration, error) {
			ctx, cancel := context.WithTimeout(shares.WithOwner(t.Context(), owner), 10*time.Second)
			defer cancel()
			began := time.Now()
			err := l.Wait(ctx)
			return time.Since(began), err
		}
		var came, failed atomic.Int32
		for range 3000 {
			go func() {
				if _, err := ask("many"); err != nil {
					failed.Add(1)
				} else {
					came.Add(1)
				}
			}()
		}
		synctest.Wait()
		for _, owner := range []string{"few", "", "few"} {
			if took, err := ask(owner); err != nil || took > 100*time.Millisecond {
				t.Errorf("a request of %q took %v, %v", owner, took, err)
			}
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if came.Load() < 590 || came.Load()+failed.Load() != 3000 {
			t.Errorf("%d requests of the namespace with many came through, %d did not", came.Load(), failed.Load())
		}
	})
}
