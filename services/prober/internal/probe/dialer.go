package probe

import (
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

// dialer returns what connects to pods. A probe a second and container would leave sixty sockets each
// in TIME-WAIT; lingering for 1 s ends them sooner. Not 0: that would reset the connection, and throw
// away what was sent. None lives long enough to be kept alive.
func dialer() *net.Dialer {
	return &net.Dialer{KeepAlive: -1, Control: func(_, _ string, c syscall.RawConn) error {
		return c.Control(func(fd uintptr) {
			// A socket without it works too, and only stays longer.
			_ = unix.SetsockoptLinger(int(fd), unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1, Linger: 1})
		})
	}}
}
