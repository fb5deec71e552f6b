package nodestatus

import (
	"context"
	"log/slog"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/microlet/microlet/services/internal/outbox"
	"github.com/microlet/microlet/services/internal/service"
	"github.com/microlet/microlet/services/nodestatus/internal/observe"
	"github.com/microlet/microlet/services/nodestatus/internal/schedule"
)

const jobAddresses = "addresses"

// runStandalone is nodestatus on a node without an apiserver: no Node, no Lease. It tells the other services the node's
// addresses, and writes Events, which nobody else takes, into the log.
func runStandalone(ctx context.Context, cfg Config, s *service.Service) error {
	says := newBoard(s)
	delivery, err := outbox.NewDelivery(s.Bus, eventLog{s.Log}, outbox.DeliveryOptions{
		QPS: float32(*cfg.Kubelet.Kubelet.EventRecordQPS), Burst: int(cfg.Kubelet.Kubelet.EventBurst),
		Log: s.Log, Metrics: s.Metrics,
	})
	if err != nil {
		return err
	}
	settings, period, failed := cfg.settings(), cfg.Kubelet.Kubelet.NodeStatusUpdateFrequency.Duration, ""
	loop, err := schedule.New(s.Pulse.Turn, schedule.Job{
		Name: jobAddresses, Deadline: 5 * time.Second, Run: func(ctx context.Context) time.Duration {
			addresses, err := settings.Addresses(ctx, observe.HostNetwork{})
			if err == nil {
				failed = ""
				says.addresses(addresses)
				says.writer.Complete()
			} else if failed != err.Error() {
				failed = err.Error()
				s.Log.Warn("the node's addresses cannot be found", "error", err)
			}
			return period
		},
	})
	if err != nil {
		return err
	}
	s.Go("jobs", loop.Run)
	s.Go("event delivery", delivery.Run)
	s.Ready("standalone: no apiserver to report to, Events go to the log")
	return s.Run(ctx)
}

// eventLog is where Events go that no apiserver takes.
type eventLog struct{ log *slog.Logger }

var _ outbox.Sink = eventLog{}

// Create implements outbox.Sink.
func (l eventLog) Create(_ context.Context, e *corev1.Event) (*corev1.Event, error) {
	level := slog.LevelInfo
	if e.Type == corev1.EventTypeWarning {
		level = slog.LevelWarn
	}
	l.log.Log(context.Background(), level, "event", "kind", e.InvolvedObject.Kind, "object", e.InvolvedObject.Namespace+"/"+e.InvolvedObject.Name,
		"uid", e.InvolvedObject.UID, "field", e.InvolvedObject.FieldPath, "reason", e.Reason, "message", e.Message, "count", e.Count)
	return e, nil
}

// Patch implements outbox.Sink: one that came before comes again, with its count.
func (l eventLog) Patch(ctx context.Context, e *corev1.Event, _ []byte) (*corev1.Event, error) {
	return l.Create(ctx, e)
}
