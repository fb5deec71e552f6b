package api

import (
	"time"

	"github.com/microlet/microlet/services/internal/kubeletconfig"
	"github.com/microlet/microlet/services/internal/outbox/delivery"
	"github.com/microlet/microlet/services/internal/service"
)

// NewDelivery returns what brings the outbox's Events to a sink; answered, if set, says when the sink answered last.
func NewDelivery(s *service.Service, k *kubeletconfig.Config, to delivery.Sink,
	answered func() time.Time) (*delivery.Delivery, error) {
	return delivery.New(s.Bus, to, delivery.Options{
		QPS: float32(*k.Kubelet.EventRecordQPS), Burst: int(k.Kubelet.EventBurst),
		Answered: answered, Tracer: s.Tracer, Log: s.Log, Metrics: s.Metrics,
	})
}
