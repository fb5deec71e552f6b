package nodestatus

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/microlet/microlet/services/internal/logind"
)

// firstLook bounds the first question whether the machine shuts down, for which the first report waits: a restart
// during a shutdown must not report the node ready.
const firstLook = 2 * time.Second

// shutdown knows whether the machine shuts down. Without enabled, the pods get no time then, and no service is
// informed.
type shutdown struct {
	enabled bool

	down  atomic.Bool
	known chan struct{} // closed at the first answer
	once  sync.Once
}

func newShutdown(enabled bool) *shutdown {
	return &shutdown{enabled: enabled, known: make(chan struct{})}
}

// await waits for the first answer, if there is to be one.
func (d *shutdown) await(ctx context.Context) {
	if !d.enabled {
		return
	}
	timer := time.NewTimer(firstLook)
	defer timer.Stop()
	select {
	case <-d.known:
	case <-timer.C:
		d.once.Do(func() { close(d.known) }) // it is awaited only once
	case <-ctx.Done():
	}
}

// watch calls changed with each change until ctx ends.
func (d *shutdown) watch(ctx context.Context, log *slog.Logger, changed func()) error {
	if !d.enabled {
		return nil
	}
	logind.Watch(ctx, log, func(down bool) {
		if d.down.Swap(down) != down {
			log.Info("machine begins or cancels a shutdown", "shuttingDown", down)
			changed()
		}
		d.once.Do(func() { close(d.known) })
	})
	return nil
}
