package podsapi

import (
	"context"
	"sync"

	"google.golang.org/grpc/status"
)

const (
	// listBudget is what the answers of ListPods and GetPod may take together. A node has 110 pods by default, and the API
	// server takes pods of 1.5 MiB at most. One answer may have more while there is no other.
	listBudget = 192 << 20
	// eventBudget is what the events that are being sent to watchers may take together.
	eventBudget = 64 << 20
)

// budget bounds the memory of answers that clients have not taken.
type budget struct {
	max int64

	mu    sync.Mutex
	taken int64
	given chan struct{} // closed when something is given back
}

func newBudget(most int64) *budget { return &budget{max: most, given: make(chan struct{})} }

// take waits until there is room for n bytes. It always lets one pass that is larger than the budget, alone.
func (b *budget) take(ctx context.Context, n int64) error {
	for {
		wait := b.try(n)
		if wait == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return status.FromContextError(ctx.Err()).Err()
		case <-wait:
		}
	}
}

func (b *budget) try(n int64) (wait <-chan struct{}) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.taken > 0 && b.taken+n > b.max {
		return b.given
	}
	b.taken += n
	return nil
}

func (b *budget) give(n int64) {
	if n == 0 {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.taken -= n
	close(b.given)
	b.given = make(chan struct{})
}
