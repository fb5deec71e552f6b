// Package cri connects podsync to the container runtime.
//
// It provides podsync's own calls, which are limited in number, the CRI gateway for the other services, the logs that
// only root may open, the cgroup driver, the monitor of the runtime's state, and starts the child processes. It wakes
// the workers of pods of which the runtime has something new. It does not wait for the runtime when podsync starts,
// except for up to 2 s for the cgroup driver.
package cri

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"path/filepath"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/services/internal/childpool"
	"github.com/microlet/microlet/services/internal/kubeletconfig"
	"github.com/microlet/microlet/services/internal/logkey"
	"github.com/microlet/microlet/services/internal/openlog"
	"github.com/microlet/microlet/services/internal/service"
	"github.com/microlet/microlet/services/podsync/internal/cri/internal/calllimit"
	"github.com/microlet/microlet/services/podsync/internal/cri/internal/cgroupdriver"
	"github.com/microlet/microlet/services/podsync/internal/cri/internal/containers"
	"github.com/microlet/microlet/services/podsync/internal/cri/internal/gateway"
	"github.com/microlet/microlet/services/podsync/internal/cri/internal/monitor"
	"github.com/microlet/microlet/services/podsync/internal/cri/internal/relist"
	"github.com/microlet/microlet/services/podsync/internal/cri/internal/state"
	"github.com/microlet/microlet/services/podsync/internal/cri/runtime"
)

// Options of a Runtime.
type Options struct {
	Kubelet *kubeletconfig.Config
	// Classes finds the handlers of pods.
	Classes state.Classes
	// Children make calls on foreign file systems, as to read a container's termination message.
	Children *childpool.Pool
	// Checkpoints is the folder where checkpoints of containers are written.
	Checkpoints string
	// Calls bounds the calls that start or remove sandboxes and containers at one time.
	Calls   int
	Service *service.Service
}

// Runtime is the node's.
type Runtime struct {
	*runtime.Runtime
	// Driver is the cgroup driver, and State what the runtime said last of itself.
	Driver *cgroupdriver.Driver
	State  *state.State
	// Containers are those of all pods, by which the gateway decides. Who reports of pods fills them.
	Containers *containers.Index
	// Children make calls on foreign file systems, as to read a container's termination message.
	Children *childpool.Pool

	connections *runtime.Services
	gateway     *gateway.Gateway
	logs        *openlog.Server
	log         *slog.Logger
}

// Connect prepares the connections. Close closes them.
func Connect(ctx context.Context, o Options) (*Runtime, error) {
	s, index := o.Service, &containers.Index{}
	connections, err := runtime.Dial(runtime.DialOptions{
		RuntimeEndpoint: o.Kubelet.RuntimeEndpoint(), ImageEndpoint: o.Kubelet.ImageEndpoint(), Metrics: s.Metrics,
		Log: s.Log, Tracer: s.Tracer,
	})
	if err != nil {
		return nil, err
	}
	own, err := runtime.New(connections.Runtime, connections.Image, runtime.Options{
		Limits:  calllimit.Limits{Slots: o.Calls},
		Timeout: o.Kubelet.Kubelet.RuntimeRequestTimeout.Duration, PodLogsDir: o.Kubelet.Kubelet.PodLogsDir,
		PodsDir: filepath.Join(o.Kubelet.Node.RootDir, "pods"), Foreign: o.Children, Log: s.Log, Metrics: s.Metrics,
	})
	if err != nil {
		return nil, errors.Join(err, connections.Close())
	}
	shared, err := gateway.New(gateway.Options{
		Runtime: connections.Runtime, Image: connections.Image, Lists: own.Lists(), Containers: index,
		Checkpoints: o.Checkpoints, Log: s.Log, Metrics: s.Metrics,
		Peers: s.Config.Peers(), Tracer: s.Tracer,
	})
	if err != nil {
		return nil, errors.Join(err, connections.Close())
	}
	opened := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "microlet_podsync_logs_opened_total",
		Help: "Container logs that podsync was asked to open for nodeapi, which may not, by result: ok, denied (to another " +
			"role), failed.",
	}, []string{"result"})
	if err := s.Metrics.Register(opened); err != nil {
		return nil, errors.Join(fmt.Errorf("metrics of opened logs: %w", err), connections.Close())
	}
	return &Runtime{
		Runtime: own, Driver: cgroupdriver.Find(ctx, own, o.Kubelet.Kubelet.CgroupDriver, s.Log),
		State: state.New(own, o.Classes), Containers: index, Children: o.Children,
		connections: connections, gateway: shared, log: s.Log,
		logs: &openlog.Server{
			Folder: o.Kubelet.Kubelet.PodLogsDir, Path: own.LogPath, Peers: s.Config.Peers(), Log: s.Log,
			Count: func(result string) { opened.WithLabelValues(result).Inc() },
		},
	}, nil
}

// Close closes the connections.
func (r *Runtime) Close() {
	if err := r.connections.Close(); err != nil {
		r.log.Warn("connections to the runtime not closed", logkey.Err, err)
	}
}

// Start has s serve the gateway, keep the children, wake the workers of pods that have changed in the runtime, and ask
// the runtime how it is, of which the listener learns too.
func (r *Runtime) Start(ctx context.Context, s *service.Service, workers relist.Workers,
	listener monitor.Listener) error {
	s.Go("mounter", r.Children.Serve)
	s.Go("gateway", func(ctx context.Context) error { return r.serve(ctx, s) })
	s.Go("logs for nodeapi", func(ctx context.Context) error { return r.serveLogs(ctx, s) })
	s.Go("runtime monitor", monitor.New(r.Runtime, r.Driver.Name, r.log, r.State, listener).Run)
	return relist.Start(ctx, s, r, workers)
}

// serve shares the runtime out, a socket a role.
func (r *Runtime) serve(ctx context.Context, s *service.Service) error {
	listeners := map[role.Role]net.Listener{}
	for _, to := range gateway.Roles() {
		l, err := s.Listen(s.Config.CRISocket(to))
		if err != nil {
			for _, open := range listeners {
				open.Close()
			}
			return fmt.Errorf("CRI socket of %s: %w", to, err)
		}
		listeners[to] = l
	}
	return r.gateway.Run(ctx, listeners)
}

// serveLogs opens logs for nodeapi.
func (r *Runtime) serveLogs(ctx context.Context, s *service.Service) error {
	l, err := s.Listen(s.Config.LogsSocket())
	if err != nil {
		return fmt.Errorf("socket of logs: %w", err)
	}
	return r.logs.Run(ctx, l)
}

// LowPriority lets other calls go before its removals.
func (r *Runtime) LowPriority() runtime.LowPriority { return runtime.LowPriority{Runtime: r.Runtime} }
