package probe

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"

	v1 "k8s.io/api/core/v1"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
)

// grpc asks the health service that the gRPC project defines.
func (p *Prober) grpc(ctx context.Context, t Target) (Result, error) {
	outer := ctx
	timeout := t.timeout()
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	secure := insecure.NewCredentials()
	if mode := t.Probe.GRPC.Mode; p.o.GRPCTLS && mode != nil && *mode == v1.GRPCProbeModeTLS {
		secure = credentials.NewTLS(&tls.Config{InsecureSkipVerify: true}) //nolint:gosec // a pod has no name to check
	}
	address := net.JoinHostPort(t.PodIP, strconv.Itoa(int(t.Probe.GRPC.Port)))
	conn, err := grpc.NewClient("passthrough:///"+address,
		grpc.WithUserAgent(userAgent), grpc.WithTransportCredentials(secure), grpc.WithNoProxy(),
		grpc.WithDisableServiceConfig(),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxOutput)), grpc.WithMaxHeaderListSize(maxHeader),
		grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
			conn, err := dial(ctx, "tcp", address)
			if err != nil {
				return nil, err
			}
			return &limitedConn{conn, io.LimitedReader{R: conn, N: maxConnection}}, nil
		}))
	if err != nil {
		return failure("error: failed to connect service at %q: %+v", address, err)
	}
	defer conn.Close()
	if err := connect(ctx, conn); err != nil {
		if outer.Err() != nil {
			return Result{}, outer.Err()
		}
		return failure("timeout: failed to connect service %q within %v: %+v", address, timeout, err)
	}
	service := ""
	if t.Probe.GRPC.Service != nil {
		service = *t.Probe.GRPC.Service
	}
	answer, err := grpc_health_v1.NewHealthClient(conn).Check(ctx, &grpc_health_v1.HealthCheckRequest{Service: service})
	switch {
	case err == nil && answer.GetStatus() == grpc_health_v1.HealthCheckResponse_SERVING:
		return Result{Success, "service healthy"}, nil
	case err == nil:
		return failure("service unhealthy (responded with %q)", answer.GetStatus())
	case outer.Err() != nil:
		return Result{}, outer.Err()
	}
	switch s := status.Convert(err); s.Code() {
	case codes.Unimplemented:
		return failure("error: this server does not implement the grpc health protocol (grpc.health.v1.Health): %s",
			s.Message())
	case codes.DeadlineExceeded:
		return failure("timeout: health rpc did not complete within %v", timeout)
	default:
		return failure("error: health rpc probe failed: %+v", err)
	}
}

// maxConnection is how much a server may send on a connection: certificates, headers and trailers, a message. gRPC
// bounds neither settings nor other frames beside an answer.
const maxConnection = 256 << 10

// limitedConn ends when that much was read.
type limitedConn struct {
	net.Conn
	limit io.LimitedReader
}

// Read implements net.Conn.
func (c *limitedConn) Read(p []byte) (int, error) { return c.limit.Read(p) }

// connect waits for the connection; one that is refused is tried again until ctx ends, so that the
// probe of a server that is just starting has all of its timeout.
func connect(ctx context.Context, conn *grpc.ClientConn) error {
	for {
		state := conn.GetState()
		switch state {
		case connectivity.Ready:
			return nil
		case connectivity.Shutdown:
			return errors.New("the connection was closed")
		case connectivity.Idle:
			conn.Connect()
		default:
		}
		if !conn.WaitForStateChange(ctx, state) {
			return fmt.Errorf("%w", ctx.Err())
		}
	}
}
