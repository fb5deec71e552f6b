// Package pause lets time pass between two tries, for as long as a context allows.
package pause

import (
	"context"
	"time"
)

// For returns nil after d, or the cause of ctx's end if that is not later.
func For(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
	return context.Cause(ctx)
}

// Longer returns after least, or the end of ctx: after twice that at the second failure in a row, and so on up to most.
func Longer(ctx context.Context, failures int, least, most time.Duration) {
	_ = For(ctx, min(least<<min(max(failures-1, 0), 10), most)) // who calls asks ctx
}
