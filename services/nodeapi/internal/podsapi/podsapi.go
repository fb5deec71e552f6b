// Package podsapi serves the Pods API of the kubelet: gRPC v1alpha1.Pods, for agents on the node.
//
// It answers from what podsync publishes, so it works without the API server. While the bus is away, it has the last
// pods. Before podsync has published all pods and the status of each, every call fails with FailedPrecondition.
//
//   - ListPods and GetPod return pods with the status that podsync reports, which the API server may not have yet.
//     Together they are answered 100 times a second, with a burst of 10.
//   - WatchPods sends each pod as ADDED, then INITIAL_SYNC_COMPLETE, then each change. A client that has not taken 100
//     changes gets ResourceExhausted.
//   - Memory is bounded: what clients have not taken is charged to a budget, for which calls wait. A connection whose
//     client takes nothing of it for a minute is closed.
//
// See KEP-4188.
package podsapi

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"
	"google.golang.org/grpc"

	"github.com/microlet/microlet/services/internal/calllimit"
	"github.com/microlet/microlet/services/internal/logkey"
	"github.com/microlet/microlet/services/internal/nodepods"
	"github.com/microlet/microlet/services/internal/unixgrpc"
)

const (
	// maxStreams is how many calls a connection may have under way. Further ones wait.
	maxStreams = 64
	// maxWatches is how many clients may watch.
	maxWatches = 256
	// maxRequest and maxHeaders bound what a client sends. No request has more than a UID.
	maxRequest, maxHeaders = 16 << 10, 16 << 10
	// connectTimeout is how long a client may take to say that it speaks HTTP/2.
	connectTimeout = 10 * time.Second
	// listenPause is the time until the next try to get the socket, and listenLogPeriod how often failures are logged.
	listenPause, listenLogPeriod = time.Second, time.Minute
	// abandonLogPeriod is how often it is logged that a connection was closed.
	abandonLogPeriod = 10 * time.Second
)

// Source has the node's pods; see nodepods.View.
type Source interface {
	Get(uid string) (*nodepods.Pod, bool)
	Synced() bool
	Complete() bool
}

// Options of an API.
type Options struct {
	// Listen returns the socket that is served. It is called again when that fails.
	Listen func(ctx context.Context) (net.Listener, error)
	// Socket is its path, for the log.
	Socket string
	// Peers say which processes have the roles of their user, among whom connections are shared.
	Peers   unixgrpc.Rules
	Log     *slog.Logger
	Metrics prometheus.Registerer
}

// API serves the pods of a source.
type API struct {
	o       Options
	feed    *feed
	metrics *metrics
	limiter *rate.Limiter
	lists   *budget
	events  *budget
	// patience is how long a client may take nothing of what it has asked for.
	patience  time.Duration
	abandoned rate.Sometimes
}

// New returns an API. watch is called at once and returns the source, which calls changed after a pod has changed.
func New(o Options, watch func(changed func(uid string)) Source) (*API, error) {
	m, err := newMetrics(o.Metrics)
	if err != nil {
		return nil, fmt.Errorf("metrics of the Pods API: %w", err)
	}
	return &API{
		o: o, metrics: m, feed: newFeed(watch, m.dropped.Inc), limiter: calllimit.NewLimiter(),
		lists: newBudget(listBudget), events: newBudget(eventBudget),
		patience: time.Minute, abandoned: rate.Sometimes{First: 1, Interval: abandonLogPeriod},
	}, nil
}

// Run serves until ctx ends, and returns when all calls have ended.
func (a *API) Run(ctx context.Context) error {
	refused := rate.Sometimes{First: 1, Interval: listenLogPeriod}
	for {
		l, err := a.o.Listen(ctx)
		if err == nil {
			err = a.serve(ctx, l)
		}
		if ctx.Err() != nil {
			return nil
		}
		refused.Do(func() { a.o.Log.Warn("the Pods API is not served", logkey.Err, err) })
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(listenPause):
		}
	}
}

// serve serves the listener, which it closes.
func (a *API) serve(ctx context.Context, l net.Listener) error {
	server := grpc.NewServer(
		grpc.Creds(credentialsOf{a}),
		grpc.ForceServerCodecV2(codec{}),
		grpc.ChainUnaryInterceptor(calllimit.Unary(a.limiter), a.metrics.unary),
		grpc.ChainStreamInterceptor(a.metrics.stream),
		grpc.MaxConcurrentStreams(maxStreams),
		grpc.MaxRecvMsgSize(maxRequest),
		grpc.MaxHeaderListSize(maxHeaders),
		grpc.ConnectionTimeout(connectTimeout),
		grpc.WaitForHandlers(true),
	)
	server.RegisterService(&description, a)
	defer context.AfterFunc(ctx, server.Stop)() // Serve waits for it
	a.o.Log.Info("serving the Pods API", logkey.Socket, a.o.Socket)
	return server.Serve(unixgrpc.Bound(l, unixgrpc.BoundOptions{Peers: a.o.Peers, Log: a.o.Log, Metrics: a.o.Metrics}))
}
