package apiclient

import (
	"context"

	"k8s.io/client-go/util/flowcontrol"

	"github.com/microlet/microlet/services/internal/shares"
)

// limiter lets the requests of all owners through at a rate, and those of one owner not before those of others: a pod
// may name thousands of objects, and a request that does not come through in time fails. What has no owner is the
// node's own, such as the status of pods.
type limiter struct {
	flowcontrol.RateLimiter
	turn *shares.Places
}

func newLimiter(qps float32, burst int) flowcontrol.RateLimiter {
	return &limiter{flowcontrol.NewTokenBucketRateLimiter(qps, burst), shares.New(1)}
}

// Wait implements flowcontrol.RateLimiter.
func (l *limiter) Wait(ctx context.Context) error {
	release, err := l.turn.Take(ctx, shares.Owner(ctx))
	if err != nil {
		return err
	}
	defer release()
	return l.RateLimiter.Wait(ctx)
}
