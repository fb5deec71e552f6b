package unixgrpc

import (
	"context"
	"fmt"
	"net"
	"slices"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"

	"github.com/microlet/microlet/proto/role"
)

// Peer is the other end of a connection.
type Peer struct {
	// UID and PID are the kernel's word for who connected (SO_PEERCRED): of a client at its connect,
	// of a server at its listen. In the single placement they are this process's.
	UID int
	PID int
	// Roles are those the peer may act as; none for a stranger. Root may act as more than one.
	Roles []role.Role
}

// Is says whether the peer may act as r.
func (p Peer) Is(r role.Role) bool { return slices.Contains(p.Roles, r) }

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
	p, ok := peer.FromContext(ctx)
	if !ok {
		return Peer{}, false
	}
	info, ok := p.AuthInfo.(authInfo)
	return info.peer, ok
}

// peerCredentials are transport credentials that encrypt nothing, since nothing leaves the kernel,
// and ask it who the peer is.
type peerCredentials struct {
	// roles maps a UID to the roles it may act as.
	roles func(uid int) []role.Role
	// server is the role that a client expects to find; empty takes any, and in a server it is unused.
	server role.Role
}

var _ credentials.TransportCredentials = peerCredentials{}

func (c peerCredentials) ServerHandshake(conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	p, err := c.identify(conn)
	if err != nil {
		return nil, nil, err
	}
	return conn, newAuthInfo(p), nil
}

func (c peerCredentials) ClientHandshake(_ context.Context, _ string, conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	p, err := c.identify(conn)
	if err != nil {
		return nil, nil, err
	}
	if c.server != "" && p.UID != 0 && !p.Is(c.server) {
		return nil, nil, fmt.Errorf("the server on the socket has uid %d, which is not %s's", p.UID, c.server)
	}
	return conn, newAuthInfo(p), nil
}

func newAuthInfo(p Peer) authInfo {
	return authInfo{CommonAuthInfo: credentials.CommonAuthInfo{SecurityLevel: credentials.PrivacyAndIntegrity}, peer: p}
}

// identify asks the kernel, or an in-process connection, for the other end.
func (c peerCredentials) identify(conn net.Conn) (Peer, error) {
	if in, ok := conn.(*inProcessConn); ok {
		return in.peer, nil
	}
	u, ok := conn.(*net.UnixConn)
	if !ok {
		return Peer{}, fmt.Errorf("a %T has no peer credentials; only unix sockets do", conn)
	}
	cred, err := peerCred(u)
	if err != nil {
		return Peer{}, err
	}
	return Peer{UID: int(cred.Uid), PID: int(cred.Pid), Roles: c.roles(int(cred.Uid))}, nil
}

func peerCred(conn *net.UnixConn) (*unix.Ucred, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil, fmt.Errorf("read peer credentials: %w", err)
	}
	var cred *unix.Ucred
	var optErr error
	err = raw.Control(func(fd uintptr) {
		cred, optErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	})
	if err == nil {
		err = optErr
	}
	if err != nil {
		return nil, fmt.Errorf("read peer credentials: %w", err)
	}
	return cred, nil
}

// Info tells gRPC what these credentials are.
func (peerCredentials) Info() credentials.ProtocolInfo {
	return credentials.ProtocolInfo{SecurityProtocol: "unix-peercred"}
}

// Clone returns the credentials, which have no state.
func (c peerCredentials) Clone() credentials.TransportCredentials { return c }

// OverrideServerName has nothing to override: there is no name but the UID.
func (peerCredentials) OverrideServerName(string) error { return nil }
