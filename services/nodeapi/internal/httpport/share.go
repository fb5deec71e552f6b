package httpport

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/microlet/microlet/services/internal/logkey"
)

// allowance is what a connection may take of this process, for it to know who the client is or to serve him.
type allowance struct {
	// header bounds a request's header, with the request line. HTTP/1 allows 4 KiB more.
	header int
	// write bounds the writing of what no handler writes, such as an error; handlers set their own.
	write time.Duration
	// streams is how many requests one HTTP/2 connection may carry at one time: each has to be authenticated.
	streams int
}

var (
	// strangers have no certificate that is known. A token has some KiB, and only the request line of an exec needs
	// much more, which the API server sends, who has a certificate.
	strangers = allowance{header: 16 << 10, write: StrangerWrite, streams: 8}
	// known clients may have headers as with the kubelet and the API server.
	known = allowance{header: 1 << 20, write: time.Minute, streams: 250}
)

// StrangerWrite bounds the writing of an answer to a client who is not known.
const StrangerWrite = 10 * time.Second

// acceptPause is the time until the next try to accept a connection.
const acceptPause = 100 * time.Millisecond

// door is the listener of one of a port's two servers: that of strangers, or of known clients.
type door struct {
	address net.Addr
	conns   chan net.Conn
	once    sync.Once
	closed  chan struct{}
}

func newDoor(at net.Addr) *door {
	return &door{address: at, conns: make(chan net.Conn), closed: make(chan struct{})}
}

// Accept implements net.Listener.
func (d *door) Accept() (net.Conn, error) {
	select {
	case c := <-d.conns:
		return c, nil
	case <-d.closed:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (d *door) Close() error { d.once.Do(func() { close(d.closed) }); return nil }

// Addr implements net.Listener.
func (d *door) Addr() net.Addr { return d.address }

// give hands a connection over.
func (d *door) give(c net.Conn) {
	select {
	case d.conns <- c:
	case <-d.closed:
		_ = c.Close() // the port is closed
	}
}

// doors are those of a port.
type doors struct{ strangers, known *door }

// share gives each connection to the server for its client, until the listener is closed. Who the client is, his
// certificate says, so the handshake comes first.
func (s *Server) share(ctx context.Context, l net.Listener, config *tls.Config, to doors) {
	var handshakes sync.WaitGroup
	defer handshakes.Wait()
	failed := rate.Sometimes{First: 1, Interval: closedLogPeriod}
	for {
		c, err := l.Accept()
		switch {
		case errors.Is(err, net.ErrClosed):
			return
		case err != nil: // such as of too many open files
			failed.Do(func() { s.Log.Warn("port does not accept", "server", s.Name, logkey.Err, err) })
			time.Sleep(acceptPause)
		case config == nil:
			handshakes.Go(func() { to.strangers.give(c) })
		default:
			handshakes.Go(func() { s.admit(ctx, tls.Server(c, config), to) })
		}
	}
}

// admit gives a connection away once its handshake is done.
func (s *Server) admit(ctx context.Context, c *tls.Conn, to doors) {
	in := under(c)
	in.handshake = true
	err := c.SetDeadline(time.Now().Add(headerTimeout))
	if err == nil {
		err = c.HandshakeContext(ctx)
	}
	var plain tls.RecordHeaderError
	if errors.As(err, &plain) && plain.Conn != nil {
		_, _ = io.WriteString(plain.Conn, "HTTP/1.0 400 Bad Request\r\n\r\nClient sent an HTTP request to an HTTPS server.\n")
	}
	if err == nil && len(c.ConnectionState().PeerCertificates) > maxCertificates {
		err = errLargeHandshake
	}
	if err == nil {
		err = c.SetDeadline(time.Time{})
	}
	if err != nil {
		s.Log.Debug("TLS handshake failed", logkey.Address, c.RemoteAddr().String(), logkey.Err, err)
		if errors.Is(err, errLargeHandshake) {
			in.owner.closed(in.address, reasonHandshake, false)
		}
		_ = c.Close() // there is no one to serve
		return
	}
	known := s.recognize(c)
	in.shakenHands(c.ConnectionState().PeerCertificates)
	if known {
		to.known.give(c)
	} else {
		to.strangers.give(c)
	}
}

// recognize looks at the client certificate of a connection after its handshake, and reports whether it authenticates
// the caller.
func (s *Server) recognize(c *tls.Conn) bool {
	state := c.ConnectionState()
	if s.Certified == nil || len(state.PeerCertificates) == 0 {
		return false
	}
	user, ok := s.Certified(&state)
	if !ok || user == "" {
		return false
	}
	in := under(c)
	in.owner.authenticate(in, user)
	return true
}
