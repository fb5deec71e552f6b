package test

import (
	"context"
	"errors"
	"net"
	"sync/atomic"
	"testing"

	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/services/internal/testing/proctest"
)

// A client asks no name server where the bus is: one that does not answer would hold each connect, and the end of a
// service, for as long as a resolver waits.
func TestNoNameServerIsAsked(t *testing.T) {
	var asked atomic.Int32
	resolver := net.DefaultResolver
	net.DefaultResolver = &net.Resolver{PreferGo: true, Dial: func(context.Context, string, string) (net.Conn, error) {
		asked.Add(1)
		return nil, errors.New("no name server")
	}}
	defer func() { net.DefaultResolver = resolver }()
	n := newNode(t)
	p := n.peer(role.Prober, "0", "", nil)
	proctest.Await(t, bound, "a connection", p.Connected)
	n.bus.Kill()
	proctest.Await(t, bound, "the loss of the bus", func() bool { return !p.Connected() })
	n.start()
	proctest.Await(t, bound, "another connection", p.Connected)
	p.close()
	if n := asked.Load(); n > 0 {
		t.Errorf("a name server was asked %d times", n)
	}
}
