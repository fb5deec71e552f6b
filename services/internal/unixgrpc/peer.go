package unixgrpc

import (
	"context"
	"errors"
	"fmt"
	"net"

	"google.golang.org/grpc/credentials"
	grpcpeer "google.golang.org/grpc/peer"

	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/services/internal/peer"
)

// Peer is the other end of a connection.
type Peer = peer.Peer

// Rules say which processes have the roles of their user.
type Rules = peer.Rules

// authInfo is what the handshake knows and a handler's context carries.
type authInfo struct {
	credentials.CommonAuthInfo
	peer Peer
}

// AuthType names the mechanism, as gRPC asks for it.
func (authInfo) AuthType() string { return "unix-peercred" }

// PeerOf returns the caller of a handler; false if the call did not come through this package's
// credentials.
func PeerOf(ctx context.Context) (Peer, bool) {
	p, ok := grpcpeer.FromContext(ctx)
	if !ok {
		return Peer{}, false
	}
	info, ok := p.AuthInfo.(authInfo)
	return info.peer, ok
}

// userOf is the user whose bounds a peer shares.
func userOf(p Peer) int {
	if len(p.Roles) == 0 {
		return strangers
	}
	return p.UID
}

// peerCredentials are transport credentials that encrypt nothing, since nothing leaves the kernel,
// and ask it who the peer is.
type peerCredentials struct {
	rules Rules
	// server is the role that a client expects to find; empty takes any, and in a server it is unused.
	server role.Role
	// meter is where a server charges connections; a client has none.
	meter *guard
}

var _ credentials.TransportCredentials = peerCredentials{}

func (c peerCredentials) ServerHandshake(conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	p, err := Identify(conn, c.rules)
	if err != nil {
		return nil, nil, err
	}
	if _, inside := conn.(*inProcessConn); !inside && c.meter != nil {
		conn = newMeteredConn(conn, c.meter.accounts.of(userOf(p)), func(why error) { c.meter.limited(p, why) })
	}
	return conn, newAuthInfo(p), nil
}

func (c peerCredentials) ClientHandshake(_ context.Context, _ string,
	conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	p, err := Identify(conn, c.rules)
	if err != nil {
		return nil, nil, err
	}
	if c.server != "" && !p.Serves(c.server) {
		return nil, nil, notServing(c.server, p)
	}
	if _, inside := conn.(*inProcessConn); !inside {
		conn = newMeteredClient(conn)
	}
	return conn, newAuthInfo(p), nil
}

func newAuthInfo(p Peer) authInfo {
	return authInfo{CommonAuthInfo: credentials.CommonAuthInfo{SecurityLevel: credentials.PrivacyAndIntegrity}, peer: p}
}

// Identify asks the kernel, or an in-process connection, who is at the other end: of a server's connection the client,
// and of a client's the server. It reads the other process's cgroups, so it is called once for each connection. A
// stranger is a Peer without roles; an error says that the other process has ended, or cannot be seen. Of a connection
// that Bound has accepted the answer is that of the rules there.
//
// A client goes on only if the peer Serves the role that it wants to reach.
func Identify(conn net.Conn, rules Rules) (Peer, error) {
	if in, ok := conn.(*inProcessConn); ok {
		return in.peer, nil
	}
	if b, ok := conn.(*boundConn); ok {
		return b.peer, b.unknown
	}
	u, ok := conn.(*net.UnixConn)
	if !ok {
		return Peer{}, fmt.Errorf("a %T has no peer credentials; only unix sockets do", conn)
	}
	return peer.Identify(u, rules)
}

// Connect dials the unix socket at path for clients that speak no gRPC, and returns a connection to a server that has
// the role; empty takes any.
func Connect(ctx context.Context, path string, server role.Role, rules Rules) (net.Conn, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", path)
	if err != nil {
		return nil, err
	}
	p, err := Identify(conn, rules)
	if err == nil && server != "" && !p.Serves(server) {
		err = notServing(server, p)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("dial %s: %w", path, err), conn.Close())
	}
	return conn, nil
}

func notServing(server role.Role, p Peer) error {
	return fmt.Errorf("the server on the socket is not %s: %s", server, p)
}

// Info describes these credentials to gRPC.
func (peerCredentials) Info() credentials.ProtocolInfo {
	return credentials.ProtocolInfo{SecurityProtocol: "unix-peercred"}
}

// Clone returns the credentials, which have no state.
func (c peerCredentials) Clone() credentials.TransportCredentials { return c }

// OverrideServerName has nothing to override: there is no name but the UID.
func (peerCredentials) OverrideServerName(string) error { return nil }
