package up

import (
	"context"
	"log/slog"

	"github.com/microlet/microlet/services/internal/logkey"
	"github.com/microlet/microlet/services/internal/service"
	"github.com/microlet/microlet/services/microlet/internal/lockfile"
)

// turn is the time in which this agent, and no other one with the same --lock-file, has the node.
type turn struct {
	lock  *lockfile.Lock // nil without a lock file
	yield bool           // to who wants the lock
}

// takeTurn waits until no other agent holds --lock-file. The lock comes before everything else: another microlet may
// have the same runtime folder.
func (c *Config) takeTurn(ctx context.Context) (*turn, error) {
	path, yield := c.Kubelet.Node.LockFile, c.Kubelet.Node.ExitOnLockContention
	if path == "" {
		return &turn{}, nil
	}
	lock, err := lockfile.Acquire(ctx, path, yield, func() {
		slog.Info("another process holds the lock file; waiting until it ends", logkey.Path, path)
	})
	if err != nil {
		return nil, err
	}
	return &turn{lock: lock, yield: yield}, nil
}

// watch has s end the turn when another process wants the lock (--exit-on-lock-contention). As with the kubelet, this
// end is no error.
func (t *turn) watch(s *service.Service, end context.CancelCauseFunc) {
	if !t.yield {
		return
	}
	s.Go("lock file", func(ctx context.Context) error {
		if err := t.lock.Contended(ctx); err != nil {
			end(err)
		}
		return nil
	})
}

// release lets another agent have the node. All services have ended.
func (t *turn) release() error {
	if t.lock == nil {
		return nil
	}
	return t.lock.Release()
}
