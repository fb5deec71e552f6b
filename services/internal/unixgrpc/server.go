package unixgrpc

import (
	"context"
	"log/slog"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/tap"

	"github.com/microlet/microlet/services/internal/logkey"
)

const (
	// maxMessage is as large as the bus's: the largest pod fits in one message.
	maxMessage = 16 << 20

	// maxStreams of one connection; a caller's further calls wait for the end of others. It is far above what a
	// node's pods can have going on at once.
	maxStreams = 1024

	// maxHeaders is what the headers of one call may have, decoded. gRPC's own bound is 16 MiB, which a caller fills
	// with a fortieth of that on the wire before the policy is asked.
	maxHeaders = 16 << 10

	// connectTimeout is how long a caller may take to say that it speaks HTTP/2.
	connectTimeout = 10 * time.Second

	// denialLogPeriod is how often one caller's refusals of one method are logged. All are counted.
	denialLogPeriod = 10 * time.Second
)

// ServerOptions say who may call a server, and where its refusals are logged.
type ServerOptions struct {
	// Policy is required; without one every call is refused.
	Policy *Policy
	// Log gets one warning for each caller and method that is refused, at most every 10 s. Default: slog's.
	Log *slog.Logger
	// Metrics gets microlet_grpc_denied_total; servers may share one. Nil counts nowhere.
	Metrics prometheus.Registerer
	// Peers say which processes have the roles of their user. Default: those in this process's own cgroups.
	Peers Rules
}

// NewServer returns a gRPC server that knows its callers by the kernel's word and refuses, with
// PermissionDenied, what the policy does not give them. Handlers find the caller with PeerOf.
//
// It must be served on listeners of Listen or InProcess: on others every handshake fails.
func NewServer(o ServerOptions, extra ...grpc.ServerOption) *grpc.Server {
	if o.Policy == nil {
		o.Policy = NewPolicy(nil)
	}
	if o.Log == nil {
		o.Log = slog.Default()
	}
	g := &guard{policy: o.Policy, log: o.Log, denied: deniedCounter(o.Metrics), logged: map[denial]time.Time{}}
	options := []grpc.ServerOption{
		grpc.Creds(peerCredentials{rules: o.Peers}),
		// Before anything of a call but its headers is read. It sees methods that nobody serves, too.
		grpc.InTapHandle(g.admit),
		grpc.MaxConcurrentStreams(maxStreams),
		grpc.MaxHeaderListSize(maxHeaders),
		grpc.ConnectionTimeout(connectTimeout),
		grpc.UnknownServiceHandler(func(any, grpc.ServerStream) error {
			return status.Error(codes.Unimplemented, "no such method")
		}),
		grpc.MaxRecvMsgSize(maxMessage),
		grpc.MaxSendMsgSize(maxMessage),
		grpc.StaticStreamWindowSize(streamWindow),
		grpc.StaticConnWindowSize(connWindow),
		// Half the period at which Dial pings.
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{
			MinTime:             pingPeriod / 2,
			PermitWithoutStream: true,
		}),
	}
	return grpc.NewServer(append(options, extra...)...)
}

// guard is the policy at the door of a server.
type guard struct {
	policy *Policy
	log    *slog.Logger
	denied *prometheus.CounterVec

	mu     sync.Mutex
	logged map[denial]time.Time
}

// denial is what one log line speaks of.
type denial struct {
	uid    int
	method string
}

// admit refuses a call that the policy does not give its caller. It runs in the goroutine that reads the connection.
func (g *guard) admit(ctx context.Context, info *tap.Info) (context.Context, error) {
	return ctx, g.check(ctx, info.FullMethodName)
}

func (g *guard) check(ctx context.Context, method string) error {
	p, ok := PeerOf(ctx)
	if !ok {
		p.UID, p.PID = -1, -1
	}
	allowed, known := g.policy.allows(method, p.Roles)
	if allowed {
		return nil
	}
	if !known {
		// A caller may invent any number of names, which must not become as many time series.
		method = "unknown"
	}
	g.denied.WithLabelValues(method, strconv.Itoa(p.UID)).Inc()
	if g.mayLog(denial{p.UID, method}, time.Now()) {
		g.log.Warn("gRPC call denied", logkey.Method, method, logkey.UID, p.UID, logkey.PID, p.PID,
			logkey.Roles, p.Roles,
			logkey.Reason, p.Reason)
	}
	return status.Errorf(codes.PermissionDenied, "%s may not call this method", p)
}

// mayLog limits what one caller can write into the log.
func (g *guard) mayLog(d denial, now time.Time) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if now.Sub(g.logged[d]) < denialLogPeriod {
		return false
	}
	g.logged[d] = now
	return true
}

func deniedCounter(r prometheus.Registerer) *prometheus.CounterVec {
	return shared(r, prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "microlet_grpc_denied_total",
		Help: "Calls that were refused because the caller's roles do not have the method.",
	}, []string{"method", "uid"}))
}
