package pause

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

func TestFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gone := errors.New("gone")
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(time.Minute, func() { cancel(gone) })
		for _, test := range []struct {
			d, want time.Duration
			err     error
		}{
			{0, 0, nil},
			{59 * time.Second, 59 * time.Second, nil},
			{time.Hour, time.Second, gone},
			{time.Hour, 0, gone},
		} {
			began := time.Now()
			if err := For(ctx, test.d); !errors.Is(err, test.err) || time.Since(began) != test.want {
				t.Errorf("%v: %v after %v, want %v after %v", test.d, err, time.Since(began), test.err, test.want)
			}
		}
	})
}

func TestLonger(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for failures, want := range []time.Duration{
			50 * time.Millisecond, 50 * time.Millisecond, 100 * time.Millisecond, 200 * time.Millisecond,
			400 * time.Millisecond, 500 * time.Millisecond, 500 * time.Millisecond,
		} {
			began := time.Now()
			if Longer(t.Context(), failures, 50*time.Millisecond, 500*time.Millisecond); time.Since(began) != want {
				t.Errorf("%d failures: %v, want %v", failures, time.Since(began), want)
			}
		}
		began := time.Now()
		if Longer(t.Context(), 1<<40, time.Second, time.Minute); time.Since(began) != time.Minute {
			t.Errorf("very many failures: %v", time.Since(began))
		}
	})
}
