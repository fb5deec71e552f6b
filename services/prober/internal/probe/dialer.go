package probe

import (
	"context"
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

// maxLingering is how many connections may take their time to close. Each keeps a thread, of which the prober has a few
// hundred.
const maxLingering = 64

// lingerers has room for each of them.
var lingerers = make(chan struct{}, maxLingering)

// dial connects to a pod. A probe a second and container would leave sixty sockets each
// in TIME-WAIT; lingering for 1 s ends them sooner. Not 0: that would reset the connection, and throw
// away what was sent. None lives long enough to be kept alive.
func dial(ctx context.Context, network, address string) (net.Conn, error) {
	d := &net.Dialer{KeepAlive: -1, Control: func(_, _ string, c syscall.RawConn) error {
		return c.Control(func(fd uintptr) {
			// A socket without it works too, and only stays longer.
			_ = unix.SetsockoptLinger(int(fd), unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1, Linger: 1})
		})
	}}
	c, err := d.DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	if tcp, ok := c.(*net.TCPConn); ok {
		return lingering{tcp}, nil
	}
	return c, nil
}

// lingering is a connection that lingers when it is closed, unless so many do that a server that takes nothing would
// have the prober run out of threads. It is then reset.
type lingering struct{ *net.TCPConn }

// Close implements net.Conn.
func (c lingering) Close() error {
	select {
	case lingerers <- struct{}{}:
		defer func() { <-lingerers }()
	default:
		_ = c.SetLinger(0) // it may be closed already
	}
	return c.TCPConn.Close()
}
