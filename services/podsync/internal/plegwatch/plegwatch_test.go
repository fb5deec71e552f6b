package plegwatch

import (
	"testing"
	"testing/synctest"
	"time"
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
		l.relisted()
		time.Sleep(2 * time.Second)
		l.beat(2)
		if got := time.Since(l.Last()); got != 0 {
			t.Errorf("its loop turned %v ago", got)
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
