package probe

import (
	"context"
	"time"

	"github.com/microlet/microlet/services/internal/shares"
)

// places bound how many do something at one time. Namespaces share them.
type places struct{ *shares.Places }

// take waits for a place. It is given back by release, or after hold if that is sooner.
func (p places) take(ctx context.Context, namespace string, hold time.Duration) (release func(), err error) {
	back, err := p.Take(ctx, namespace)
	if err != nil {
		return nil, err
	}
	timer := time.AfterFunc(hold, back)
	return func() { timer.Stop(); back() }, nil
}
