package csivolume

import (
	"context"
	"fmt"
	"sync"
)

// locks are one for each volume.
type locks struct {
	mu   sync.Mutex
	held map[device]chan struct{}
}

// lock waits for the volume, until ctx ends.
func (l *locks) lock(ctx context.Context, d device) (unlock func(), err error) {
	for {
		l.mu.Lock()
		before, taken := l.held[d]
		if !taken {
			own := make(chan struct{})
			if l.held == nil {
				l.held = map[device]chan struct{}{}
			}
			l.held[d] = own
			l.mu.Unlock()
			return func() {
				l.mu.Lock()
				delete(l.held, d)
				l.mu.Unlock()
				close(own)
			}, nil
		}
		l.mu.Unlock()
		select {
		case <-before:
		case <-ctx.Done():
			return nil, fmt.Errorf("volume %s of CSI driver %s: another call is under way: %w", d.handle, d.driver,
				context.Cause(ctx))
		}
	}
}
