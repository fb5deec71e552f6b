package unixgrpc

import (
	"errors"
	"net"
	"sync"
)

// Merge returns one listener that accepts from all, for a service that shares its process: its siblings come through
// the process, others through the socket. Closing it closes all.
func Merge(listeners ...net.Listener) net.Listener {
	if len(listeners) == 1 {
		return listeners[0]
	}
	m := &merged{listeners: listeners, accepted: make(chan accepted), closed: make(chan struct{})}
	for _, l := range listeners {
		m.wg.Go(func() { m.pump(l) })
	}
	return m
}

type accepted struct {
	conn net.Conn
	err  error
}

type merged struct {
	listeners []net.Listener
	accepted  chan accepted
	closed    chan struct{}
	once      sync.Once
	err       error
	wg        sync.WaitGroup
}

// pump carries one listener's connections, and its errors: whether one is worth another try is for
// who accepts to say, so only the listener's own end ends it.
func (m *merged) pump(l net.Listener) {
	for {
		c, err := l.Accept()
		select {
		case m.accepted <- accepted{c, err}:
		case <-m.closed:
			if c != nil {
				_ = c.Close() // no caller is left to report it to
			}
			return
		}
		if errors.Is(err, net.ErrClosed) {
			return
		}
	}
}

func (m *merged) Accept() (net.Conn, error) {
	select {
	case a := <-m.accepted:
		return a.conn, a.err
	case <-m.closed:
		return nil, net.ErrClosed
	}
}

// Close closes every listener and waits until none accepts.
func (m *merged) Close() error {
	m.once.Do(func() {
		close(m.closed)
		for _, l := range m.listeners {
			m.err = errors.Join(m.err, l.Close())
		}
		m.wg.Wait()
	})
	return m.err
}

// Addr is the first listener's.
func (m *merged) Addr() net.Addr { return m.listeners[0].Addr() }
