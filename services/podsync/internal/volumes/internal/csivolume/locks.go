package csivolume

import (
	"context"
	"fmt"
	"sync/atomic"

	"google.golang.org/grpc/status"

	"github.com/microlet/microlet/services/internal/keylock"
	csidriver "github.com/microlet/microlet/services/podsync/internal/volumes/internal/csi"
)

// locks are one for each volume.
type locks struct {
	calls   *calls
	volumes keylock.Locks[device]
}

// lock waits for the volume, until ctx ends.
func (l *locks) lock(ctx context.Context, d device) (*lockedVolume, error) {
	held, err := l.volumes.Lock(ctx, d)
	if err != nil {
		return nil, fmt.Errorf("volume %s of CSI driver %s: %w", d.handle, d.driver, err)
	}
	locked := &lockedVolume{calls: l.calls, held: held}
	locked.holders.Store(1)
	return locked, nil
}

// lockedVolume is a volume that a caller has locked. It stays locked until the caller has released it, and until the
// call that the caller has given up is over.
type lockedVolume struct {
	calls *calls
	held  *keylock.Held
	// holders are the caller and the call.
	holders atomic.Int32
}

func (l *lockedVolume) release() {
	if l.holders.Add(-1) == 0 {
		l.held.Unlock()
	}
}

// call has the driver change the volume. It returns early when ctx ends, with the error that gRPC has for that.
func (l *lockedVolume) call(ctx context.Context, do func(context.Context) error) error {
	if err := ctx.Err(); err != nil {
		return status.FromContextError(err).Err()
	}
	answer := make(chan error, 1)
	l.holders.Add(1)
	err := l.calls.begin(ctx, func(ctx context.Context) {
		err := do(ctx)
		l.release()
		answer <- err
	})
	if err != nil {
		l.release()
		return err
	}
	select {
	case err := <-answer:
		return err
	case <-ctx.Done():
		return status.FromContextError(ctx.Err()).Err()
	}
}

// unpublish has the driver take the volume from a pod.
func (l *lockedVolume) unpublish(ctx context.Context, driver *csidriver.Driver, handle, target string) error {
	return l.call(ctx, func(ctx context.Context) error { return driver.Unpublish(ctx, handle, target) })
}
