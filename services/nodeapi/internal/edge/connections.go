// Package edge is where the network ends: listeners that bear strangers, and the certificate they see.
//
// Its inputs are addresses, limits and files of certificates; its outputs HTTP servers. It guarantees
// that the number of connections is bounded, also of one address, that none lives on without use, and
// that a port that cannot be opened is tried again and holds up nothing else.
package edge

import (
	"context"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Limits of a listener.
type Limits struct {
	// Connections is how many there may be at one time. More are closed as they come.
	Connections int
	// PerAddress is how many one remote address may have, so that no single stranger takes them all.
	PerAddress int
	// Idle is how long a connection may pass no byte before it is closed; 0 is for ever.
	Idle time.Duration
}

// limited is a listener that keeps to limits.
type limited struct {
	net.Listener
	limits  Limits
	refused prometheus.Counter

	mu    sync.Mutex
	conns map[*conn]struct{}
	from  map[netip.Addr]int
}

func limit(l net.Listener, limits Limits, refused prometheus.Counter) *limited {
	return &limited{Listener: l, limits: limits, refused: refused, conns: map[*conn]struct{}{}, from: map[netip.Addr]int{}}
}

// Accept implements net.Listener.
func (l *limited) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if in := l.admit(c); in != nil {
			return in, nil
		}
		l.refused.Inc()
		_ = c.Close() // it was never ours
	}
}

func (l *limited) admit(c net.Conn) net.Conn {
	remote, _ := netip.ParseAddrPort(c.RemoteAddr().String()) // the zero address counts as one
	in := &conn{Conn: c, owner: l, remote: remote.Addr().Unmap()}
	in.used.Store(time.Now().UnixNano())
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.conns) >= l.limits.Connections || l.from[in.remote] >= l.limits.PerAddress {
		return nil
	}
	l.conns[in] = struct{}{}
	l.from[in.remote]++
	return in
}

func (l *limited) forget(c *conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, ok := l.conns[c]; !ok {
		return
	}
	delete(l.conns, c)
	if l.from[c.remote]--; l.from[c.remote] == 0 {
		delete(l.from, c.remote)
	}
}

// reap closes connections that nothing passed for too long, until the context ends; then all, streams
// too, of which the HTTP server knows nothing any more.
func (l *limited) reap(ctx context.Context) {
	var tick <-chan time.Time
	if l.limits.Idle > 0 {
		t := time.NewTicker(max(l.limits.Idle/8, time.Second))
		defer t.Stop()
		tick = t.C
	}
	for {
		select {
		case <-ctx.Done():
			l.closeOlder(0)
			return
		case <-tick:
			l.closeOlder(l.limits.Idle)
		}
	}
}

func (l *limited) closeOlder(idle time.Duration) {
	var old []*conn
	l.mu.Lock()
	for c := range l.conns {
		if time.Since(time.Unix(0, c.used.Load())) >= idle {
			old = append(old, c)
		}
	}
	l.mu.Unlock()
	for _, c := range old {
		_ = c.Close() // whoever uses it learns it by its own error
	}
}

// conn notes when something passed last.
type conn struct {
	net.Conn
	owner  *limited
	remote netip.Addr
	used   atomic.Int64
}

func (c *conn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if n > 0 {
		c.used.Store(time.Now().UnixNano())
	}
	return n, err
}

func (c *conn) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	if n > 0 {
		c.used.Store(time.Now().UnixNano())
	}
	return n, err
}

func (c *conn) Close() error {
	c.owner.forget(c)
	return c.Conn.Close()
}
