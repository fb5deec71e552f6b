package childpool

import (
	"context"
	"io"
	"time"
)

// progressPeriod is the least time between two messages of a child about how far it is.
const progressPeriod = time.Second

type progressKey struct{}

// WithProgress has report called with how much an operation has done, while it runs. A child reports when it begins,
// and at most once a second after that.
func WithProgress(ctx context.Context, report func(done int64)) context.Context {
	return context.WithValue(ctx, progressKey{}, report)
}

// Report is called by an operation with how much it has done, as often as it likes.
func Report(ctx context.Context, done int64) {
	if report, ok := ctx.Value(progressKey{}).(func(int64)); ok {
		report(done)
	}
}

// reporting has a child's operation report to the other end of a connection.
func reporting(ctx context.Context, conn io.Writer) context.Context {
	var last time.Time
	return WithProgress(ctx, func(done int64) {
		if now := time.Now(); last.IsZero() || now.Sub(last) >= progressPeriod {
			last = now
			_ = writeMessage(conn, answer{Progress: &done}) // the answer will fail, too
		}
	})
}
