package pluginregistration

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

func TestAHandlerHasADeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		err := call(t.Context(), Plugin{}, func(ctx context.Context, _ Plugin) error {
			<-ctx.Done()
			return ctx.Err()
		})
		if !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != handlerTimeout {
			t.Errorf("after %v: %v", time.Since(began), err)
		}
	})
}
