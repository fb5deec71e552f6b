package runtime

import (
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"

	"k8s.io/cri-client/pkg/util"

	"github.com/microlet/microlet/services/internal/tracing"
)

const (
	// maxMessage is the largest CRI message taken, as the kubelet's.
	maxMessage = 16 << 20
	// streamWindow is how much of one answer the runtime may send ahead of its reader, and connWindow how much of all
	// may be on its way; fixed, since gRPC would find them by a ping beside almost every answer.
	streamWindow = 1 << 20
	connWindow   = 4 << 20
	// A runtime that restarts is back within a second or two; its socket costs nothing
	// to try, so the delay between tries stays small.
	reconnectFirst = 50 * time.Millisecond
	reconnectMax   = 500 * time.Millisecond
	connectTimeout = 2 * time.Second
)

// DialOptions say where the runtime is.
type DialOptions struct {
	// RuntimeEndpoint is KubeletConfiguration's containerRuntimeEndpoint, such as
	// "unix:///run/containerd/containerd.sock". Required.
	RuntimeEndpoint string
	// ImageEndpoint is imageServiceEndpoint; empty is RuntimeEndpoint.
	ImageEndpoint string
	// Metrics of the calls are registered here; nil registers none.
	Metrics prometheus.Registerer
	Log     *slog.Logger
	// Tracer lets the runtime continue the traces of calls; nil is none.
	Tracer *tracing.Tracer
}

// Services are the connections to a runtime. They connect when first used, and again
// whenever they are broken.
type Services struct {
	// Runtime and Image carry CRI's two services; they are the same connection when the
	// endpoints are. Calls through them are counted in kubelet_runtime_operations_*.
	Runtime, Image grpc.ClientConnInterface

	close []func() error
}

// Dial prepares the connections. It does not wait for the runtime, which may be down.
//
// cri-client's own constructor is not used: it calls the runtime and fails when that is
// down, and its clients cannot pass a foreign request on, which the gateway must.
func Dial(opts DialOptions) (*Services, error) {
	if opts.RuntimeEndpoint == "" {
		return nil,
			errors.New("containerRuntimeEndpoint is empty: set it to the runtime's socket, such as " +
				"unix:///run/containerd/containerd.sock")
	}
	if opts.Log == nil {
		opts.Log = slog.Default()
	}
	metrics, err := newCallMetrics(opts.Metrics)
	if err != nil {
		return nil, err
	}
	s := &Services{}
	conn, err := s.connect("containerRuntimeEndpoint", opts.RuntimeEndpoint, opts.Tracer)
	if err != nil {
		return nil, err
	}
	bounded, err := newOutputs(conn)
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	s.Runtime = instrumented{bounded, metrics}
	s.Image = s.Runtime
	if opts.ImageEndpoint != "" && opts.ImageEndpoint != opts.RuntimeEndpoint {
		conn, err := s.connect("imageServiceEndpoint", opts.ImageEndpoint, opts.Tracer)
		if err != nil {
			return nil, errors.Join(err, s.Close())
		}
		s.Image = instrumented{conn, metrics}
	}
	return s, nil
}

func (s *Services) connect(field, endpoint string, tracer *tracing.Tracer) (*grpc.ClientConn, error) {
	address, dialer, err := util.GetAddressAndDialer(endpoint)
	if err != nil {
		return nil, fmt.Errorf("%s %q: %w: it must look like unix:///run/containerd/containerd.sock", field, endpoint,
			err)
	}
	delays := backoff.DefaultConfig
	delays.BaseDelay, delays.MaxDelay = reconnectFirst, reconnectMax
	conn, err := grpc.NewClient("passthrough:///"+address, append(tracer.DialOptions(),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithAuthority("localhost"),
		grpc.WithContextDialer(dialer),
		grpc.WithIdleTimeout(0),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: delays, MinConnectTimeout: connectTimeout}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage)),
		grpc.WithStaticStreamWindowSize(streamWindow),
		grpc.WithStaticConnWindowSize(connWindow),
	)...)
	if err != nil {
		return nil, fmt.Errorf("%s %q: %w", field, endpoint, err)
	}
	s.close = append(s.close, conn.Close)
	return conn, nil
}

// Close breaks the connections and every call on them.
func (s *Services) Close() error {
	var errs []error
	for _, c := range s.close {
		errs = append(errs, c())
	}
	return errors.Join(errs...)
}
