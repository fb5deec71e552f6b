package unixgrpc

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/microlet/microlet/services/internal/logkey"
	"github.com/microlet/microlet/services/internal/peer"
)

const (
	// maxConnections bounds the connections of one user to one socket. A service has one a replica, and some for
	// a moment while one replica replaces another; a service that wants more takes nothing from the others.
	maxConnections = 32

	// refusalLogPeriod is how often one socket's refusals are logged. All are counted.
	refusalLogPeriod = 10 * time.Second

	// strangers stands for all who have no role, who share one bound: a pod may have thousands of users, and root.
	strangers = -1
)

// BoundOptions say who learns of refused connections.
type BoundOptions struct {
	// Peers say which processes have the roles of their user. Default: those in this process's own cgroups.
	Peers Rules
	// Log gets a warning for refused connections, at most every 10 s. Default: slog's.
	Log *slog.Logger
	// Metrics gets microlet_refused_connections_total; listeners may share one. Nil counts nowhere.
	Metrics prometheus.Registerer
}

// Bound returns a listener that holds at most 32 connections of one user's processes with a role open, and 32 of all
// others together, such as root in a pod. It closes further ones at once, so that no caller can use up the descriptors
// of a service. It owns the listener that it is given, which is one of Listen. Identify finds the peer of a connection
// without asking the kernel again.
func Bound(l net.Listener, o BoundOptions) net.Listener {
	if o.Log == nil {
		o.Log = slog.Default()
	}
	return &bounded{
		Listener: l, rules: o.Peers, log: o.Log, open: map[int]int{},
		refused: shared(o.Metrics, prometheus.NewCounter(prometheus.CounterOpts{
			Name: "microlet_refused_connections_total",
			Help: "Connections to a socket of the service that were closed at once because their user has too many.",
		})),
	}
}

type bounded struct {
	net.Listener
	rules   Rules
	log     *slog.Logger
	refused prometheus.Counter

	mu     sync.Mutex
	open   map[int]int // by user, all strangers as one
	logged time.Time
}

// Accept waits for the next connection that has a place.
func (b *bounded) Accept() (net.Conn, error) {
	for {
		conn, err := b.Listener.Accept()
		if err != nil {
			return conn, err
		}
		unix, ok := conn.(*net.UnixConn)
		if !ok {
			return nil, errors.Join(fmt.Errorf("a %T has no user; only connections of unix sockets do", conn),
				conn.Close())
		}
		c := &boundConn{UnixConn: unix}
		c.peer, c.unknown = peer.Identify(unix, b.rules)
		user := userOf(c.peer)
		if !b.enter(user) {
			b.refuse(c)
			continue
		}
		c.leave = sync.OnceFunc(func() { b.leave(user) })
		return c, nil
	}
}

func (b *bounded) enter(user int) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.open[user] >= maxConnections {
		return false
	}
	b.open[user]++
	return true
}

func (b *bounded) leave(user int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.open[user]--; b.open[user] == 0 {
		delete(b.open, user)
	}
}

func (b *bounded) refuse(c *boundConn) {
	_ = c.UnixConn.Close()
	b.refused.Inc()
	b.mu.Lock()
	now := time.Now()
	log := now.Sub(b.logged) >= refusalLogPeriod
	if log {
		b.logged = now
	}
	b.mu.Unlock()
	if log {
		b.log.Warn("connection refused", logkey.Socket, b.Addr(), logkey.UID, c.peer.UID, logkey.PID, c.peer.PID,
			logkey.Reason, fmt.Sprintf("%d of its user, or of those without a role, are open already: %s",
				maxConnections, c.peer))
	}
}

// boundConn knows its peer, and gives its place back when it is closed.
type boundConn struct {
	*net.UnixConn
	peer    Peer
	unknown error // why the peer is not known
	leave   func()
}

// Close closes the connection; the place is free even if that fails.
func (c *boundConn) Close() error {
	defer c.leave()
	return c.UnixConn.Close()
}

// shared registers a collector and returns it, or the one of its name that is registered already. A nil registry
// is none.
func shared[C prometheus.Collector](r prometheus.Registerer, c C) C {
	if r == nil {
		return c
	}
	if err := r.Register(c); err != nil {
		var twice prometheus.AlreadyRegisteredError
		if errors.As(err, &twice) {
			if existing, ok := twice.ExistingCollector.(C); ok {
				return existing
			}
		}
		panic(err) // two metrics of one name: a bug, and one that every start shows
	}
	return c
}
