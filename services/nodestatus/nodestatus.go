package nodestatus

import (
	"context"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"

	podsyncv1 "github.com/microlet/microlet/proto/microlet/podsync/v1"
	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/services/internal/outbox"
	"github.com/microlet/microlet/services/internal/service"
	"github.com/microlet/microlet/services/nodestatus/internal/api"
	"github.com/microlet/microlet/services/nodestatus/internal/authreview"
	"github.com/microlet/microlet/services/nodestatus/internal/lease"
	"github.com/microlet/microlet/services/nodestatus/internal/nodebus"
	"github.com/microlet/microlet/services/nodestatus/internal/observe"
	"github.com/microlet/microlet/services/nodestatus/internal/registration"
	"github.com/microlet/microlet/services/nodestatus/internal/report"
	"github.com/microlet/microlet/services/nodestatus/internal/schedule"
	"github.com/microlet/microlet/services/nodestatus/internal/spanexport"
)

// Run runs nodestatus until ctx ends. It leaves the Node and its Lease as they are: a restart is not
// to be seen from outside.
func Run(ctx context.Context, cfg Config) error {
	if err := cfg.Validate(); err != nil {
		return err
	}
	s, err := service.New(cfg.Service, role.NodeStatus)
	if err != nil {
		return err
	}
	exportName(s.Metrics, cfg.Service.NodeName)
	if err := spanexport.Start(s); err != nil {
		return err
	}
	if cfg.Kubelet.Standalone() {
		return runStandalone(ctx, &cfg, s)
	}
	clients, err := api.New(cfg.Service.NodeName, api.Options{
		Kubeconfig:     cfg.Kubelet.Node.Kubeconfig,
		ContentType:    cfg.Kubelet.Kubelet.ContentType,
		RequestTimeout: cfg.RequestTimeout,
		Wrap:           traced(s),
	})
	if err != nil {
		return err
	}
	conn, err := s.Dial(ctx, role.Podsync)
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := reportNode(&cfg, s, clients, podsyncv1.NewPodsyncServiceClient(conn)); err != nil {
		return err
	}
	delivery, err := api.NewDelivery(s, cfg.Kubelet, clients.Events(), clients.Answered)
	if err != nil {
		return err
	}
	s.Go("event delivery", delivery.Run)
	authreview.Register(s, clients)
	s.Ready("reporting node " + cfg.Service.NodeName)
	return s.Run(ctx)
}

// reportNode has s register the Node, and report its status and its Lease.
func reportNode(cfg *Config, s *service.Service, clients *api.Clients, asked podsyncv1.PodsyncServiceClient) error {
	loop := schedule.New(s.Pulse.Turn)
	var reporter *report.Reporter // set before the service runs, and so before due is called
	due := func() {
		reporter.Due()
		loop.Kick(jobStatus)
	}
	entries := nodebus.Watch(s, func(string) { due() })
	podsync := observe.NewPodsync(entries.PodsyncHeartbeat, asked)
	ready := observe.NewReady(podsync)
	events := outbox.NewRecorder(s.Bus, cfg.Service.NodeName, s.Log)
	down := newShutdown(cfg.Kubelet.DelaysShutdown())
	collector := &observe.Collector{
		Settings: cfg.settings(), Network: observe.HostNetwork{}, Limits: cfg.limits(), Reservation: cfg.reservation(),
		Capacity: entries.Capacity, Runtime: entries.Runtime, Images: entries.Images,
		Volumes:  showing(entries, &observe.NodeVolumes{Entries: entries.Volumes, Client: asked, Log: s.Log}),
		Extended: entries.Extended, Pressure: entries.Pressure, Ready: ready,
		ShuttingDown: down.down.Load, Found: entries.Addresses, Log: s.Log,
	}
	accepted := func(*v1.Node) {}
	if cfg.Kubelet.ExternalCloud() { // the Node's addresses are the cloud controller manager's
		collector.Found = func([]v1.NodeAddress) {}
		accepted = func(n *v1.Node) { entries.Addresses(n.Status.Addresses) }
	}
	watched := clients.Watch()
	registered := registration.New(registration.Options{
		Ready: ready, Bus: entries, Machine: collector.Source.Machine, Watched: watched.Node, Events: events,
		Registered: func() { loop.Kick(jobLease) },
	})
	reporter = report.New(report.Options{
		Settings: cfg.settings(), Register: *cfg.Kubelet.Kubelet.RegisterNode, Nodes: clients, Cached: watched.Node,
		Observe: collector.Observe, Found: registered.Found, Record: registered.Record,
		Accepted:        func(n *v1.Node) { accepted(n); registered.Accepted(n) },
		UpdateFrequency: cfg.Kubelet.Kubelet.NodeStatusUpdateFrequency.Duration,
		ReportFrequency: cfg.Kubelet.Kubelet.NodeStatusReportFrequency.Duration,
		Failed:          clients.Failed, Succeeded: clients.Succeeded, Log: s.Log, Metrics: s.Metrics,
	})
	renewer := lease.New(lease.Options{
		Leases: clients.Leases(), NodeName: cfg.Service.NodeName, Duration: cfg.leaseDuration(), Gate: podsync.Turns,
		NodeUID: registered.NodeUID, RequestTimeout: cfg.RequestTimeout,
		Failed: clients.Failed, Succeeded: clients.Succeeded, Log: s.Log, Metrics: s.Metrics,
	})
	if err := loop.Add(jobs(podsync, ready, entries, renewer, reporter, down)...); err != nil {
		return err
	}
	s.Go("shutdown", func(ctx context.Context) error {
		return down.watch(ctx, s.Log, due)
	})
	s.Go("jobs", loop.Run)
	s.Go("node watch", watched.Run)
	s.Go("events", events.Run)
	return nil
}

// showing returns what podsync says of volumes, and has entries know the list that the Node is to show.
func showing(entries *nodebus.Entries, from *observe.NodeVolumes) func(context.Context) observe.VolumeEntries {
	return func(ctx context.Context) observe.VolumeEntries {
		v := from.Get(ctx)
		entries.Showing(v.Volumes)
		return v
	}
}

// traced lets requests to the API server continue traces.
func traced(s *service.Service) func(*rest.Config) {
	if s.Tracer == nil {
		return nil
	}
	return func(c *rest.Config) { c.Wrap(s.Tracer.Transport) }
}

// exportName makes the node's name known to who joins its other metrics by it.
func exportName(to prometheus.Registerer, name string) {
	g := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "kubelet_node_name",
		Help: "The node's name. The count is always 1."}, []string{"node"})
	to.MustRegister(g)
	g.WithLabelValues(name).Set(1)
}
