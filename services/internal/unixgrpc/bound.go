package unixgrpc

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/services/internal/logkey"
	"github.com/microlet/microlet/services/internal/peer"
)

const (
	// maxConnections bounds the connections of one user to one socket. A service has one a replica, and some for
	// a moment while one replica replaces another; whoever wants more takes nothing from the others.
	maxConnections = 32

	// refusalLogPeriod is how often one socket's refusals are logged. All are counted.
	refusalLogPeriod = 10 * time.Second

	// strangers stands for all users without a role, who share one bound: a pod may have thousands of users.
	strangers = -1
)

// BoundOptions say who learns of refused connections.
type BoundOptions struct {
	// Peers say which users have roles. Default: role.ByUID.
	Peers Rules
	// Log gets a warning for refused connections, at most every 10 s. Default: slog's.
	Log *slog.Logger
	// Metrics gets microlet_refused_connections_total; listeners may share one. Nil counts nowhere.
	Metrics prometheus.Registerer
}

// Bound returns a listener that holds at most 32 connections of one user open, and 32 of all users without a
// role together. It closes further ones at once, so that nobody can use up the descriptors of a service. It
// owns the listener that it is given, which is one of Listen.
func Bound(l net.Listener, o BoundOptions) net.Listener {
	if o.Log == nil {
		o.Log = slog.Default()
	}
	if o.Peers.Roles == nil {
		o.Peers.Roles = role.ByUID
	}
	return &bounded{
		Listener: l, roles: o.Peers.Roles, log: o.Log, open: map[int]int{},
		refused: shared(o.Metrics, prometheus.NewCounter(prometheus.CounterOpts{
			Name: "microlet_refused_connections_total",
			Help: "Connections to a socket of the service that were closed at once because their user has too many.",
		})),
	}
}

type bounded struct {
	net.Listener
	roles   func(uid int) []role.Role
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
		uid, err := peer.UID(unix)
		if err != nil {
			b.refuse(unix, strangers, err.Error())
			continue
		}
		user := uid
		if len(b.roles(uid)) == 0 {
			user = strangers
		}
		if !b.enter(user) {
			b.refuse(unix, uid, fmt.Sprintf("its user has %d open already", maxConnections))
			continue
		}
		return &boundConn{UnixConn: unix, leave: sync.OnceFunc(func() { b.leave(user) })}, nil
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

func (b *bounded) refuse(conn *net.UnixConn, uid int, why string) {
	_ = conn.Close()
	b.refused.Inc()
	b.mu.Lock()
	now := time.Now()
	log := now.Sub(b.logged) >= refusalLogPeriod
	if log {
		b.logged = now
	}
	b.mu.Unlock()
	if log {
		b.log.Warn("connection refused", logkey.Socket, b.Addr(), logkey.UID, uid, logkey.Reason, why)
	}
}

// boundConn gives its place back when it is closed.
type boundConn struct {
	*net.UnixConn
	leave func()
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
