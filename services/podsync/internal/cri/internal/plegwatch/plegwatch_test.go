package plegwatch

import (
	"testing"
	"testing/synctest"
	"time"

	plegv1 "github.com/microlet/microlet/proto/microlet/pleg/v1"
)

func TestProofsOfLife(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l Liveness
		if !l.Last().IsZero() {
			t.Error("a pleg that was never heard has proved something")
		}
		l.beat(1)
		l.Hinted()
		if !l.Last().IsZero() {
			t.Error("a pleg that never relisted looks at nothing")
		}
		l.relisted(&plegv1.Relist{Generation: 1})
		time.Sleep(2 * time.Second)
		l.beat(2)
		if got := time.Since(l.Last()); got != 0 {
			t.Errorf("the last round of its loop was %v ago", got)
		}
		time.Sleep(2 * time.Second)
		l.beat(2)
		if got := time.Since(l.Last()); got != 2*time.Second {
			t.Errorf("a loop that stands still counts as of %v ago", got)
		}
		l.Hinted()
		if got := time.Since(l.Last()); got != 0 {
			t.Errorf("it hinted %v ago", got)
		}
		time.Sleep(staleRelist)
		l.beat(3)
		if got := time.Since(l.Last()); got <= staleRelist {
			t.Errorf("it lives and relisted %v ago, which counts as of %v ago", staleRelist+4*time.Second, got)
		}
	})
}

// A pleg with failing relists, or with a report that comes a second time, has not looked since.
func TestAFailedRelistProvesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l Liveness
		l.relisted(&plegv1.Relist{Generation: 1})
		for i := range uint64(20) {
			time.Sleep(time.Second)
			l.beat(i + 1)
			l.relisted(&plegv1.Relist{Generation: i + 2, Error: "list containers: larger than a message"})
			l.relisted(&plegv1.Relist{Generation: 1})
		}
		if got := time.Since(l.Last()); got != 20*time.Second {
			t.Errorf("a pleg that has not listed the runtime for 20 s counts as one that looked %v ago", got)
		}
		l.relisted(&plegv1.Relist{Generation: 22})
		if got := time.Since(l.Last()); got != 0 {
			t.Errorf("a pleg that has just listed the runtime counts as one that looked %v ago", got)
		}
	})
}
