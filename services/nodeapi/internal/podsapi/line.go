package podsapi

import (
	"context"
	"errors"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/microlet/microlet/services/internal/logkey"
)

// line is a connection that knows what its client has not taken yet. It closes itself if the client takes nothing of it
// for the patience: gRPC holds such an answer for as long as the connection lasts.
type line struct {
	net.Conn
	patience time.Duration
	abandon  func()

	mu     sync.Mutex
	owed   map[*budget]int64
	total  int64
	moved  time.Time // when owed changed last
	timer  *time.Timer
	closed bool
}

func newLine(conn net.Conn, patience time.Duration, abandoned func()) *line {
	l := &line{Conn: conn, patience: patience, owed: map[*budget]int64{}}
	l.mu.Lock() // check waits until the timer is known
	defer l.mu.Unlock()
	l.abandon = func() {
		abandoned()
		_ = l.Close() // its client learns of it by the end alone
	}
	l.timer = time.AfterFunc(patience, l.check)
	return l
}

// check abandons the line if nothing moves on it.
func (l *line) check() {
	l.mu.Lock()
	stuck := l.total > 0 && time.Since(l.moved) >= l.patience
	if !stuck && !l.closed {
		l.timer.Reset(l.patience)
	}
	l.mu.Unlock()
	if stuck {
		l.abandon()
	}
}

// charge waits until the budget has room for n bytes that are sent on the line.
func (l *line) charge(ctx context.Context, b *budget, n int64) error {
	if n == 0 {
		return nil
	}
	if err := b.take(ctx, n); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		b.give(n)
		return status.Error(codes.Canceled, "the connection is closed")
	}
	if l.total == 0 {
		l.moved = time.Now()
	}
	l.owed[b] += n
	l.total += n
	return nil
}

// settle gives back what was charged, once the client has it.
func (l *line) settle(b *budget, n int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return // Close has given it back
	}
	l.owed[b] -= n
	l.total -= n
	l.moved = time.Now()
	b.give(n)
}

// Close closes the connection and gives back what is owed: gRPC does not free the answers of a lost connection.
func (l *line) Close() error {
	l.mu.Lock()
	if !l.closed {
		l.closed = true
		l.timer.Stop()
		for b, n := range l.owed {
			b.give(n)
		}
	}
	l.mu.Unlock()
	return l.Conn.Close()
}

// receipt learns from gRPC when a piece of an answer is written or given up.
type receipt struct {
	line   *line
	budget *budget
}

var _ mem.BufferPool = receipt{}

// Get is not used: no piece is read into memory of a receipt.
func (receipt) Get(n int) *[]byte { return new(make([]byte, n)) }

// Put settles a piece.
func (r receipt) Put(piece *[]byte) { r.line.settle(r.budget, int64(len(*piece))) }

// credentialsOf encrypt nothing, since nothing leaves the kernel. They make a line of each connection.
type credentialsOf struct{ api *API }

var _ credentials.TransportCredentials = credentialsOf{}

// lineInfo lets a handler find its line.
type lineInfo struct {
	credentials.CommonAuthInfo
	line *line
}

func (lineInfo) AuthType() string { return "unix" }

func (c credentialsOf) ServerHandshake(conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	l := newLine(conn, c.api.patience, c.api.logAbandoned)
	return l, lineInfo{credentials.CommonAuthInfo{SecurityLevel: credentials.PrivacyAndIntegrity}, l}, nil
}

func (a *API) logAbandoned() {
	a.abandoned.Do(func() {
		a.o.Log.Warn("connection to the Pods API closed", logkey.Reason, "its client does not take what it has asked for",
			logkey.After, a.patience)
	})
}

func (credentialsOf) ClientHandshake(context.Context, string, net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return nil, nil, errors.New("these credentials are a server's")
}

func (credentialsOf) Info() credentials.ProtocolInfo {
	return credentials.ProtocolInfo{SecurityProtocol: "unix"}
}

func (c credentialsOf) Clone() credentials.TransportCredentials { return c }

func (credentialsOf) OverrideServerName(string) error { return nil }

// lineOf is the line of a call.
func lineOf(ctx context.Context) (*line, error) {
	if p, ok := peer.FromContext(ctx); ok {
		if info, ok := p.AuthInfo.(lineInfo); ok {
			return info.line, nil
		}
	}
	return nil, status.Error(codes.Internal, "the call has no connection")
}
