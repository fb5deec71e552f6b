package unixgrpc

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/microlet/microlet/proto/role"
)

// InProcess connects the services of one process, by the names that their sockets have. Its zero
// value is ready. It is safe for concurrent use.
//
// The connections are socket pairs, so that deadlines, buffers and closing are the kernel's, as they
// are between processes; only who is at the other end is known without asking it.
type InProcess struct {
	mu        sync.Mutex
	listeners map[string]*inProcessListener
}

// Listen serves name until the listener is closed.
func (n *InProcess) Listen(name string) (net.Listener, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.listeners[name] != nil {
		return nil, fmt.Errorf("listen on %s: %w", name, ErrInUse)
	}
	l := &inProcessListener{network: n, name: name, incoming: make(chan net.Conn), closed: make(chan struct{})}
	if n.listeners == nil {
		n.listeners = map[string]*inProcessListener{}
	}
	n.listeners[name] = l
	return l, nil
}

// Dial connects to name as the role; it fails as a unix socket does without a server.
func (n *InProcess) Dial(ctx context.Context, self role.Role, name string) (net.Conn, error) {
	n.mu.Lock()
	l := n.listeners[name]
	n.mu.Unlock()
	if l == nil {
		return nil, &net.OpError{Op: "dial", Net: "inprocess", Addr: inProcessAddr(name), Err: syscall.ECONNREFUSED}
	}
	client, server, err := socketPair()
	if err != nil {
		return nil, fmt.Errorf("dial %s: %w", name, err)
	}
	here := Peer{UID: os.Getuid(), PID: os.Getpid()}
	caller, callee := here, here
	caller.Roles = []role.Role{self}
	callee.Roles = role.All() // one process is all of its services
	select {
	case l.incoming <- &inProcessConn{Conn: server, peer: caller}:
		return &inProcessConn{Conn: client, peer: callee}, nil
	case <-l.closed:
		err = &net.OpError{Op: "dial", Net: "inprocess", Addr: inProcessAddr(name), Err: syscall.ECONNREFUSED}
	case <-ctx.Done():
		err = fmt.Errorf("dial %s: %w", name, ctx.Err())
	}
	return nil, errors.Join(err, client.Close(), server.Close())
}

// inProcessConn is one end of a connection and knows the other.
type inProcessConn struct {
	net.Conn
	peer Peer
}

type inProcessListener struct {
	network  *InProcess
	name     string
	incoming chan net.Conn
	closed   chan struct{}
	once     sync.Once
}

var _ net.Listener = (*inProcessListener)(nil)

// Accept waits for the next connection; the error is net.ErrClosed after Close.
func (l *inProcessListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.incoming:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

// Close ends the listener and frees its name.
func (l *inProcessListener) Close() error {
	l.once.Do(func() {
		l.network.mu.Lock()
		defer l.network.mu.Unlock()
		delete(l.network.listeners, l.name)
		close(l.closed)
	})
	return nil
}

// Addr is the listener's name.
func (l *inProcessListener) Addr() net.Addr { return inProcessAddr(l.name) }

type inProcessAddr string

// Network is "inprocess".
func (inProcessAddr) Network() string { return "inprocess" }

// String is the name that was listened on.
func (a inProcessAddr) String() string { return string(a) }

// socketPair returns the two ends of a connected stream.
func socketPair() (net.Conn, net.Conn, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("socketpair: %w", err)
	}
	a, errA := fileConn(fds[0])
	b, errB := fileConn(fds[1])
	if err := errors.Join(errA, errB); err != nil {
		for _, c := range []net.Conn{a, b} {
			if c != nil {
				err = errors.Join(err, c.Close())
			}
		}
		return nil, nil, err
	}
	return a, b, nil
}

// fileConn takes the descriptor over, whatever happens.
func fileConn(fd int) (net.Conn, error) {
	f := os.NewFile(uintptr(fd), "socketpair")
	c, err := net.FileConn(f) // has its own copy of the descriptor
	return c, errors.Join(err, f.Close())
}
