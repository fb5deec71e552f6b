package unixgrpc

import (
	"context"
	"fmt"
	"net"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/keepalive"

	"github.com/microlet/microlet/proto/role"
)

const (
	// pingPeriod and pingTimeout find a peer that is stopped while a call waits for it. gRPC allows
	// no shorter period.
	pingPeriod  = 10 * time.Second
	pingTimeout = 5 * time.Second

	// streamWindow is how much of one call a peer may send ahead of its reader, and connWindow how much of all
	// calls may be on its way. They are fixed: to size them by measuring, gRPC sends a ping beside almost every
	// message, which costs both ends nearly as much as the call itself, and a socket within one machine has no
	// distance to measure.
	streamWindow = 1 << 20
	connWindow   = 4 << 20

	// maxAnswerHeaders is what the headers of an answer may have, decoded, such as the text of an error. gRPC's own bound
	// is 16 MiB.
	maxAnswerHeaders = 1 << 20

	// callTimeout is the deadline of a unary call that brings none.
	callTimeout = 30 * time.Second

	// Peers come back within a fraction of a second, so waiting longer than this gains nothing.
	reconnectBase = 50 * time.Millisecond
	reconnectMax  = time.Second
)

// DialOptions say whom a connection leads to.
type DialOptions struct {
	// Server is the role that must be serving: the server must have that role, or be root. Empty
	// accepts any server, for sockets in a trusted folder.
	Server role.Role
	// Network and Self are for a process that holds several services: the connection goes through Network as Self.
	// A nil Network dials the unix socket.
	Network *InProcess
	Self    role.Role
	// Peers say which processes have the roles of their user. Default: those in this process's own cgroups.
	Peers Rules
}

// Dial returns a connection to the socket at path. It connects with the first call and for ever
// again, waiting 1 s at most in between; a call without a server fails with Unavailable, unless it asks to wait
// (grpc.WaitForReady). A unary call without a deadline gets 30 s.
func Dial(path string, o DialOptions, extra ...grpc.DialOption) (*grpc.ClientConn, error) {
	dial := func(ctx context.Context, _ string) (net.Conn, error) {
		if o.Network != nil {
			return o.Network.Dial(ctx, o.Self, path)
		}
		return (&net.Dialer{}).DialContext(ctx, "unix", path)
	}
	options := []grpc.DialOption{
		grpc.WithContextDialer(dial),
		grpc.WithTransportCredentials(peerCredentials{rules: o.Peers, server: o.Server}),
		grpc.WithAuthority("localhost"),
		grpc.WithChainUnaryInterceptor(withDeadline),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: pingPeriod, Timeout: pingTimeout}),
		grpc.WithStaticStreamWindowSize(streamWindow),
		grpc.WithStaticConnWindowSize(connWindow),
		grpc.WithMaxHeaderListSize(maxAnswerHeaders),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff: backoff.Config{
				BaseDelay:  reconnectBase,
				Multiplier: 1.6,
				Jitter:     0.2,
				MaxDelay:   reconnectMax,
			},
			MinConnectTimeout: reconnectMax,
		}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage), grpc.MaxCallSendMsgSize(maxMessage)),
		// The service config of a resolver has nothing to say about a unix socket.
		grpc.WithDisableServiceConfig(),
	}
	conn, err := grpc.NewClient("passthrough:///"+path, append(options, extra...)...)
	if err != nil {
		return nil, fmt.Errorf("dial %s: %w", path, err)
	}
	return conn, nil
}

// withDeadline bounds a call that its caller did not bound.
func withDeadline(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker,
	opts ...grpc.CallOption) error {
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, callTimeout)
		defer cancel()
	}
	return invoke(ctx, method, req, reply, cc, opts...)
}
