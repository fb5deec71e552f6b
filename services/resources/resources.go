package resources

import (
	"context"
	"log/slog"
	"net"
	"time"

	"google.golang.org/grpc"
	"k8s.io/apimachinery/pkg/types"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	podresourcesv1 "k8s.io/kubelet/pkg/apis/podresources/v1"
	podresourcesv1alpha1 "k8s.io/kubelet/pkg/apis/podresources/v1alpha1"

	resourcesv1 "github.com/microlet/microlet/proto/microlet/resources/v1"
	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/proto/subject"
	"github.com/microlet/microlet/services/internal/calllimit"
	"github.com/microlet/microlet/services/internal/logkey"
	"github.com/microlet/microlet/services/internal/nodepods"
	"github.com/microlet/microlet/services/internal/service"
	"github.com/microlet/microlet/services/resources/internal/devices"
	"github.com/microlet/microlet/services/resources/internal/podresources"
	"github.com/microlet/microlet/services/resources/internal/publication"
	"github.com/microlet/microlet/services/resources/internal/registration"
	"github.com/microlet/microlet/services/resources/internal/retirement"
	"github.com/microlet/microlet/services/resources/internal/server"
)

// Run runs resources until ctx ends. What pods were granted stays theirs.
func Run(ctx context.Context, cfg Config) error {
	if err := cfg.Validate(); err != nil {
		return err
	}
	if err := service.MakeFolder(cfg.DevicePluginsDir); err != nil {
		return err
	}
	s, err := service.New(cfg.Service, role.Resources)
	if err != nil {
		return err
	}
	published := publication.New(s.Bus.Own(subject.Resources), s.Bus.Own(subject.Node))
	manager := devices.New(devices.Options{
		Folder: cfg.DevicePluginsDir, Root: cfg.Kubelet.Node.RootDir, Wait: cfg.PluginWait,
		Metrics: s.Metrics, Log: s.Log, Changed: published.Note,
	})
	node := &pods{known: make(chan struct{})}
	retired := retirement.New(node, manager.Leave)
	node.view = nodepods.Watch(s.Bus, s.Log, func(uid string) { retired.Note(types.UID(uid)) })

	resourcesv1.RegisterResourcesServiceServer(s.GRPC, server.New(manager, retired.Asked))
	s.Offer(&resourcesv1.ResourcesService_ServiceDesc, role.Podsync)
	s.Allow(resourcesv1.ResourcesService_ListPlugins_FullMethodName, role.Podsync, role.Up)

	s.Go("devices", manager.Run)
	s.Go("publication", func(ctx context.Context) error { return published.Run(ctx, manager, s.Pulse.Turn) })
	s.Go("pods", node.await)
	s.Go("retirement", retired.Run)
	s.Go("registration", cfg.registration(s, manager))
	s.Go("podresources", cfg.podResources(s, node, manager))
	s.Ready("granting devices")
	return s.Run(ctx)
}

// Bounds of the servers for plugins and for readers of podresources. Both have small requests.
const (
	maxRequest     = 64 << 10
	maxHeaders     = 16 << 10
	maxStreams     = 64
	connectTimeout = 10 * time.Second
)

// newServer returns a gRPC server for callers that have no role.
func newServer(more ...grpc.ServerOption) *grpc.Server {
	return grpc.NewServer(append([]grpc.ServerOption{
		grpc.MaxRecvMsgSize(maxRequest), grpc.MaxHeaderListSize(maxHeaders), grpc.MaxConcurrentStreams(maxStreams),
		grpc.ConnectionTimeout(connectTimeout),
	}, more...)...)
}

// registration returns what serves the socket on which plugins register.
func (c *Config) registration(s *service.Service, m *devices.Manager) func(context.Context) error {
	return serve(s, c.registrationSocket(), func() *grpc.Server {
		g := newServer()
		pluginapi.RegisterRegistrationServer(g, registration.New(c.DevicePluginsDir, m))
		return g
	})
}

// podResources returns what serves the podresources API.
func (c *Config) podResources(s *service.Service, p *pods, m *devices.Manager) func(context.Context) error {
	metrics := podresources.NewMetrics(s.Metrics)
	return serve(s, podResourcesSocket(c.Kubelet), func() *grpc.Server {
		g := newServer(grpc.UnaryInterceptor(calllimit.Unary(calllimit.NewLimiter())))
		podresourcesv1.RegisterPodResourcesListerServer(g, podresources.NewV1(p, m, metrics))
		podresourcesv1alpha1.RegisterPodResourcesListerServer(g, podresources.NewV1alpha1(p, m, metrics))
		return g
	})
}

// listenRetry is the time between two attempts to open a socket.
const listenRetry = 5 * time.Second

// serve returns what serves a socket until its context ends. A socket that cannot be opened, such as one that a kubelet
// still has, is tried again: the service does the rest of its work, and in the single placement the others theirs.
func serve(s *service.Service, socket service.Socket, makeServer func() *grpc.Server) func(context.Context) error {
	open := s.Claim(socket)
	return func(ctx context.Context) error {
		l := listen(ctx, s.Log.With(logkey.Socket, socket.Path), open)
		if l == nil {
			return nil
		}
		g := makeServer()
		return service.ServeGRPC(ctx, g, func() error { return g.Serve(l) })
	}
}

// listen opens a socket; nil if the context has ended before.
func listen(ctx context.Context, log *slog.Logger, open func() (net.Listener, error)) net.Listener {
	for logged := ""; ; {
		l, err := open()
		if err == nil {
			return l
		}
		if logged != err.Error() {
			logged = err.Error()
			log.Error("a socket cannot be opened; the next attempts follow", logkey.Err, err, "every", listenRetry)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(listenRetry):
		}
	}
}
