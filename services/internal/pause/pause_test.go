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
