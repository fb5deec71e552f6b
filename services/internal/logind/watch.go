package logind

import (
	"context"
	"log/slog"
	"time"

	"github.com/microlet/microlet/services/internal/logkey"
)

// reconnectAfter is the pause between two connections.
const reconnectAfter = time.Second

// Watch calls changed with whether a shutdown is under way: at first with what logind says, and then with each change.
// It connects again when the connection ends. A failure is logged once until logind answers again. Watch returns when
// ctx ends.
func Watch(ctx context.Context, log *slog.Logger, changed func(shuttingDown bool)) {
	failing := false
	for ctx.Err() == nil {
		err := watchOnce(ctx, func(shuttingDown bool) {
			failing = false
			changed(shuttingDown)
		})
		if ctx.Err() == nil && !failing {
			failing = true
			log.Warn("logind is not watched, a shutdown of the machine is not noticed; will retry", logkey.Err, err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(reconnectAfter):
		}
	}
}

func watchOnce(ctx context.Context, changed func(shuttingDown bool)) error {
	c, err := Connect(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	preparing, err := c.Preparing(ctx)
	for ; err == nil; preparing, err = c.Next(ctx) {
		changed(preparing)
	}
	return err
}
