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

	// maxRequest is what a request may have unless a server says otherwise. Most name a pod or a container.
	maxRequest = 64 << 10

	// maxStreams of one connection; a caller's further calls wait for the end of others. It is far above what a
	// node's pods can have going on at once: prober runs 8 commands, and nodeapi begins 500 sessions, which take a
	// call for a moment each.
	maxStreams = 256

	// requestWindow is how much of one call a caller may send ahead of who reads it, the least that gRPC allows. It
	// opens as far as a message needs while that is read.
	requestWindow = 64 << 10
	// requestsWindow is how much of all calls may be on its way. It bounds no memory (see budget).
	requestsWindow = 1 << 20

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
	// MaxRequest is how many bytes a request may have; a larger one gets ResourceExhausted. Default: 64 KiB.
	MaxRequest int
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
	if o.MaxRequest == 0 {
		o.MaxRequest = maxRequest
	}
	g := &guard{
		policy: o.Policy, log: o.Log, denied: deniedCounter(o.Metrics), limits: limitsCounter(o.Metrics),
		logged: map[denial]time.Time{},
	}
	options := []grpc.ServerOption{
		grpc.Creds(peerCredentials{rules: o.Peers, meter: g}),
		// Before anything of a call but its headers is read. It also sees unknown methods.
		grpc.InTapHandle(func(ctx context.Context, info *tap.Info) (context.Context, error) {
			return ctx, g.check(ctx, info.FullMethodName)
		}),
		grpc.MaxConcurrentStreams(maxStreams),
		grpc.MaxHeaderListSize(maxHeaders),
		grpc.ConnectionTimeout(connectTimeout),
		grpc.UnknownServiceHandler(func(any, grpc.ServerStream) error {
			return status.Error(codes.Unimplemented, "no such method")
		}),
		grpc.MaxRecvMsgSize(o.MaxRequest),
		grpc.MaxSendMsgSize(maxMessage),
		grpc.StaticStreamWindowSize(requestWindow),
		grpc.StaticConnWindowSize(requestsWindow),
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
	policy   *Policy
	log      *slog.Logger
	denied   *prometheus.CounterVec
	limits   *prometheus.CounterVec
	accounts accounts

	mu     sync.Mutex
	logged map[denial]time.Time
}

// denial is what one log line speaks of.
type denial struct {
	uid  int
	what string // a method, or a limit
}

// limited counts and logs a connection of a peer that asks too much of the server.
func (g *guard) limited(p Peer, why error) {
	g.limits.WithLabelValues(strconv.Itoa(p.UID)).Inc()
	if g.mayLog(denial{p.UID, why.Error()}, time.Now()) {
		g.log.Warn("gRPC caller limited", logkey.UID, p.UID, logkey.PID, p.PID, logkey.Roles, p.Roles, logkey.Reason, why)
	}
}

// check refuses a call that the policy does not give its caller. It runs in the goroutine that reads the connection.
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

func limitsCounter(r prometheus.Registerer) *prometheus.CounterVec {
	return shared(r, prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "microlet_grpc_limited_total",
		Help: "Connections that were closed because the calls of their user take too much memory.",
	}, []string{"uid"}))
}

func deniedCounter(r prometheus.Registerer) *prometheus.CounterVec {
	return shared(r, prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "microlet_grpc_denied_total",
		Help: "Calls that were refused because the caller's roles do not have the method.",
	}, []string{"method", "uid"}))
}
