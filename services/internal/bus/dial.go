package bus

import (
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/services/internal/logkey"
	"github.com/microlet/microlet/services/internal/peer"
)

// busURL satisfies nats.go, which wants an address. The dialer connects to the socket whatever it says.
const busURL = "nats://bus"

// strangerLogPeriod is how often the log says that a stranger serves the bus's socket. All are counted.
const strangerLogPeriod = 10 * time.Second

// dialer connects to the bus's unix socket, and hands over the connection only if the bus, or root, is at its other
// end: the service would believe everything from another process there.
type dialer struct {
	socket    string
	rules     peer.Rules
	log       *slog.Logger
	strangers prometheus.Counter

	mu     sync.Mutex
	logged time.Time
}

var _ nats.CustomDialer = (*dialer)(nil)

// Dial ignores the network and address, which are those of busURL.
func (d *dialer) Dial(_, _ string) (net.Conn, error) {
	conn, err := (&net.Dialer{Timeout: connectTimeout}).Dial("unix", d.socket)
	if err != nil {
		return nil, fmt.Errorf("connect to the bus: %w", err)
	}
	if err := d.check(conn.(*net.UnixConn)); err != nil {
		_ = conn.Close()
		return nil, err
	}
	return newInbound(conn), nil
}

func (d *dialer) check(conn *net.UnixConn) error {
	p, err := peer.Identify(conn, d.rules)
	if err != nil {
		return fmt.Errorf("who serves %s: %w", d.socket, err)
	}
	if p.Serves(role.Bus) {
		return nil
	}
	d.strangers.Inc()
	if d.mayLog() {
		d.log.Error("a stranger serves the bus's socket; the service does not sign in there", logkey.Socket, d.socket,
			logkey.UID, p.UID, logkey.PID, p.PID, "peer", p.String())
	}
	return fmt.Errorf("the server on %s is not the bus: %s", d.socket, p)
}

func (d *dialer) mayLog() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if time.Since(d.logged) < strangerLogPeriod {
		return false
	}
	d.logged = time.Now()
	return true
}
