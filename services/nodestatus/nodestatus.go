package nodestatus

import (
	"context"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"

	nodestatusv1 "github.com/microlet/microlet/proto/microlet/nodestatus/v1"
	podsyncv1 "github.com/microlet/microlet/proto/microlet/podsync/v1"
	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/services/internal/outbox"
	"github.com/microlet/microlet/services/internal/service"
	"github.com/microlet/microlet/services/nodestatus/internal/api"
	"github.com/microlet/microlet/services/nodestatus/internal/lease"
	"github.com/microlet/microlet/services/nodestatus/internal/observe"
	"github.com/microlet/microlet/services/nodestatus/internal/report"
	"github.com/microlet/microlet/services/nodestatus/internal/review"
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
	tellName(s.Metrics, cfg.Service.NodeName)
	if cfg.Kubelet.Standalone() {
		return runStandalone(ctx, cfg, s)
	}
	clients, err := api.New(cfg.Service.NodeName, api.Options{
		Kubeconfig: cfg.Kubelet.Node.Kubeconfig, ContentType: cfg.Kubelet.Kubelet.ContentType, RequestTimeout: cfg.RequestTimeout,
	})
	if err != nil {
		return err
	}
	conn, err := s.Dial(ctx, role.Podsync)
	if err != nil {
		return err
	}
	defer conn.Close()

	says := newBoard(s)
	podsync := observe.NewPodsync(says.podsyncHeartbeat, podsyncv1.NewPodsyncServiceClient(conn))
	ready := observe.NewReady(podsync)
	events := outbox.NewRecorder(s.Bus, cfg.Service.NodeName, s.Log)
	delivery, err := outbox.NewDelivery(s.Bus, clients.Events(), outbox.DeliveryOptions{
		QPS: float32(*cfg.Kubelet.Kubelet.EventRecordQPS), Burst: int(cfg.Kubelet.Kubelet.EventBurst),
		Answered: clients.Answered, Log: s.Log, Metrics: s.Metrics,
	})
	if err != nil {
		return err
	}
	collector := &observe.Collector{
		Settings: cfg.settings(), Network: observe.HostNetwork{}, Limits: cfg.limits(), Reservation: cfg.reservation(),
		Capacity: says.podsyncCapacity, Runtime: says.podsyncRuntime, Ready: ready, Found: says.addresses, Log: s.Log,
	}
	watched := clients.Watch()
	face := &face{service: s, board: says, events: events, collector: collector, ready: ready}
	reporter := report.New(report.Options{
		Settings: cfg.settings(), Register: *cfg.Kubelet.Kubelet.RegisterNode, Nodes: clients, Cached: watched.Node,
		Observe: collector.Observe, Found: face.found, Accepted: face.accepted, Record: face.record,
		UpdateFrequency: cfg.Kubelet.Kubelet.NodeStatusUpdateFrequency.Duration,
		ReportFrequency: cfg.Kubelet.Kubelet.NodeStatusReportFrequency.Duration,
		Failed:          clients.Failed, Succeeded: clients.Succeeded, Log: s.Log, Metrics: s.Metrics,
	})
	renewer := lease.New(lease.Options{
		Leases: clients.Leases(), NodeName: cfg.Service.NodeName, Duration: cfg.leaseDuration(), Gate: podsync.Turns,
		NodeUID: func() types.UID { return face.uid(reporter, watched) }, RequestTimeout: cfg.RequestTimeout,
		Failed: clients.Failed, Succeeded: clients.Succeeded, Log: s.Log, Metrics: s.Metrics,
	})
	loop, err := jobs(s, podsync, ready, says, renewer, reporter)
	if err != nil {
		return err
	}
	nodestatusv1.RegisterReviewServiceServer(s.GRPC, review.NewServer(clients, s.Metrics))
	s.Allow(nodestatusv1.ReviewService_ReviewToken_FullMethodName, role.NodeAPI)
	s.Allow(nodestatusv1.ReviewService_ReviewAccess_FullMethodName, role.NodeAPI)
	face.registered = func() { loop.Kick(jobLease) }
	s.Go("jobs", loop.Run)
	s.Go("node watch", watched.Run)
	s.Go("events", events.Run)
	s.Go("event delivery", delivery.Run)
	s.Ready("reporting node " + cfg.Service.NodeName)
	return s.Run(ctx)
}

// tellName makes the node's name known to who joins its other metrics by it.
func tellName(to prometheus.Registerer, name string) {
	g := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "kubelet_node_name", Help: "The node's name. The count is always 1."}, []string{"node"})
	to.MustRegister(g)
	g.WithLabelValues(name).Set(1)
}
