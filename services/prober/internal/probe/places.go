package probe

import (
	"context"
	"sync"
	"time"
)

// places bounds how many do something at one time.
type places struct{ free chan struct{} }

func newPlaces(n int) *places { return &places{make(chan struct{}, max(n, 1))} }

// take waits for a place. It is given back by release, or after hold if that is sooner.
func (p *places) take(ctx context.Context, hold time.Duration) (release func(), err error) {
	select {
	case p.free <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	back := sync.OnceFunc(func() { <-p.free })
	timer := time.AfterFunc(hold, back)
	return func() { timer.Stop(); back() }, nil
}
