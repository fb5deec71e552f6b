package nodeapi

import (
	"context"
	"path/filepath"
	"time"

	nodestatusv1 "github.com/microlet/microlet/proto/microlet/nodestatus/v1"
	statsv1 "github.com/microlet/microlet/proto/microlet/stats/v1"
	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/services/internal/crilist"
	"github.com/microlet/microlet/services/internal/nodepods"
	"github.com/microlet/microlet/services/internal/openlog"
	"github.com/microlet/microlet/services/internal/podssocket"
	"github.com/microlet/microlet/services/internal/service"
	"github.com/microlet/microlet/services/nodeapi/internal/auth"
	"github.com/microlet/microlet/services/nodeapi/internal/containerlogs"
	"github.com/microlet/microlet/services/nodeapi/internal/httpport"
	"github.com/microlet/microlet/services/nodeapi/internal/nodelogs"
	"github.com/microlet/microlet/services/nodeapi/internal/pods"
	"github.com/microlet/microlet/services/nodeapi/internal/podsapi"
	"github.com/microlet/microlet/services/nodeapi/internal/runtime"
	"github.com/microlet/microlet/services/nodeapi/internal/scrape"
	"github.com/microlet/microlet/services/nodeapi/internal/server"
	"github.com/microlet/microlet/services/nodeapi/internal/stats"
)

// turn is the period of the pulse. Each request is a goroutine's, so this loop has nothing else to do:
// it shows that the process runs.
const turn = time.Second

// strangersMemory is how much memory the requests may take, on each port, of callers who are not known.
const strangersMemory = 64 << 20

// certifiedMemory is how much the requests may take of callers with a certificate to whom nothing was allowed yet.
const certifiedMemory = 4 * strangersMemory

// Run runs nodeapi until ctx ends. A port that cannot be opened does not end it: the others are served
// meanwhile.
func Run(ctx context.Context, cfg Config) error {
	if err := cfg.Validate(); err != nil {
		return err
	}
	s, gateway, err := service.NewWithCRI(cfg.Service, role.NodeAPI)
	if err != nil {
		return err
	}
	defer gateway.Close()
	nodestatus, err := s.Dial(ctx, role.NodeStatus)
	if err != nil {
		return err
	}
	defer nodestatus.Close()
	measured, err := s.Dial(ctx, role.Stats)
	if err != nil {
		return err
	}
	defer measured.Close()

	kubelet := &cfg.Kubelet.Kubelet
	certificates, err := httpport.NewCertificates(cfg.files(), cfg.requestedPair(), s.Log)
	if err != nil {
		return err
	}
	guard, err := auth.New(auth.Options{
		NodeName: cfg.Service.NodeName, Authentication: kubelet.Authentication, Authorization: kubelet.Authorization,
		ClientCA: certificates.ClientCA(), Reviews: nodestatusv1.NewReviewServiceClient(nodestatus), Log: s.Log,
	})
	if err != nil {
		return err
	}
	view, err := watchPods(&cfg, s)
	if err != nil {
		return err
	}
	cri := runtime.New(gateway, crilist.Options{Log: s.Log, Metrics: s.Metrics}, kubelet.RuntimeRequestTimeout.Duration)
	api := server.New(server.Options{
		Kubelet: kubelet, Gate: cfg.Kubelet.FeatureEnabled, DebuggingHandlers: *kubelet.EnableDebuggingHandlers,
		Pods: pods.New(view), Runtime: cri, Logs: &containerlogs.Reader{
			Runtime: cri, Podsync: openlog.NewClient(cfg.Service.LogsSocket(), cfg.Service.Peers()), Folder: kubelet.PodLogsDir,
		},
		NodeLogs:    nodelogs.Logs{Files: nodelogs.Files{nodelogs.Folder, kubelet.PodLogsDir}, Command: "journalctl"},
		LogQuery:    kubelet.EnableSystemLogQuery != nil && *kubelet.EnableSystemLogQuery,
		Checkpoints: filepath.Join(cfg.Kubelet.Node.RootDir, "checkpoints"), Flags: cfg.Kubelet.FlagValues(),
		Services:    scrape.New(cfg.Service.MetricsSocket, cfg.Service.Peers(), s.Log),
		Stats:       stats.New(statsv1.NewStatsServiceClient(measured), s.Log, s.Metrics),
		MaxRequests: cfg.MaxRequests, MaxLogs: cfg.MaxLogs, MaxStreams: cfg.MaxStreams,
		MaxUnauthenticated: cfg.MaxUnauthenticated,
		LongWrite:          kubelet.StreamingConnectionIdleTimeout.Duration, Tracer: s.Tracer, Log: s.Log, Metrics: s.Metrics,
	})
	for _, p := range ports(cfg, s, certificates, guard, api) {
		s.Go(p.Name+" port", p.Run)
	}
	s.Go("certificates", certificates.Run)
	s.Go("pulse", func(ctx context.Context) error { return beat(ctx, s) })
	s.Ready("serving the kubelet's API")
	return s.Run(ctx)
}

// watchPods returns the pods of the node, and has s serve them by the Pods API if its feature gate is on.
func watchPods(cfg *Config, s *service.Service) (view *nodepods.View, err error) {
	if !cfg.Kubelet.FeatureEnabled("PodsAPI") {
		return nodepods.Watch(s.Bus, s.Log, nil), nil
	}
	socket := podssocket.NewClient(cfg.Service.PodsAPISocket(), cfg.Service.Peers())
	api, err := podsapi.New(podsapi.Options{
		Listen: socket.Listen, Socket: podssocket.Path(cfg.Kubelet.Node.RootDir), Peers: cfg.Service.Peers(),
		Log: s.Log, Metrics: s.Metrics,
	}, func(changed func(uid string)) podsapi.Source {
		view = nodepods.Watch(s.Bus, s.Log, changed)
		return view
	})
	if err != nil {
		return nil, err
	}
	s.Go("Pods API", api.Run)
	return view, nil
}

// ports are those that the configuration opens.
func ports(cfg Config, s *service.Service, certificates *httpport.Certificates, guard *auth.Auth,
	api *server.Server) []*httpport.Server {
	kubelet := &cfg.Kubelet.Kubelet
	limits := httpport.Limits{
		Connections: cfg.MaxConnections,
		PerAddress:  max(cfg.MaxConnections/8, 1),
		Bytes:       strangersMemory,
		Idle:        kubelet.StreamingConnectionIdleTimeout.Duration,
	}
	figures := httpport.NewMetrics(s.Metrics)
	var list []*httpport.Server
	add := func(name, host string, port int32) *httpport.Server {
		p := &httpport.Server{Name: name, Address: address(host, port), Limits: limits, Log: s.Log, Metrics: figures}
		list = append(list, p)
		return p
	}
	if *kubelet.EnableServer {
		secure := add("https", kubelet.Address, kubelet.Port)
		secure.Handler, secure.TLS, secure.Certified = api.Handler(guard), certificates.TLS, guard.Certified
		secure.Unauthenticated = cfg.MaxConnections * 3 / 4 // on the other ports no caller is ever authenticated
		secure.Tokens = cfg.MaxConnections / 2
		secure.PerUser = max(cfg.MaxConnections/8, 1)
		secure.CertifiedBytes = certifiedMemory
		if kubelet.ReadOnlyPort > 0 {
			add("read-only", kubelet.Address, kubelet.ReadOnlyPort).Handler = api.ReadOnly()
		}
	}
	if *kubelet.HealthzPort > 0 {
		add("healthz", kubelet.HealthzBindAddress, *kubelet.HealthzPort).Handler = api.Healthz()
	}
	return list
}

func beat(ctx context.Context, s *service.Service) error {
	t := time.NewTicker(turn)
	defer t.Stop()
	for {
		s.Pulse.Turn()
		select {
		case <-ctx.Done():
			return nil
		case <-t.C:
		}
	}
}
