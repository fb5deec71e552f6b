package probe

import (
	"context"
	"net"
	"strconv"
)

// tcp succeeds when a connection can be opened. Nothing is said on it.
func (p *Prober) tcp(ctx context.Context, t Target) (Result, error) {
	host, port, err := Endpoint(t)
	if err != nil {
		return Result{}, err
	}
	limited, cancel := context.WithTimeout(ctx, t.timeout())
	defer cancel()
	conn, err := dial(limited, "tcp", net.JoinHostPort(host, strconv.Itoa(port)))
	if err != nil {
		if ctx.Err() != nil {
			return Result{}, ctx.Err()
		}
		return failure("%s", err)
	}
	_ = conn.Close() // it was opened, which is all that was asked
	return Result{Outcome: Success}, nil
}
