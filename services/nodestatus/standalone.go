package nodestatus

import (
	"context"
	"time"

	"github.com/microlet/microlet/services/internal/logkey"
	"github.com/microlet/microlet/services/internal/service"
	"github.com/microlet/microlet/services/nodestatus/internal/api"
	"github.com/microlet/microlet/services/nodestatus/internal/eventlog"
	"github.com/microlet/microlet/services/nodestatus/internal/nodebus"
	"github.com/microlet/microlet/services/nodestatus/internal/observe"
	"github.com/microlet/microlet/services/nodestatus/internal/schedule"
)

// runStandalone is nodestatus on a node without an API server: no Node, no Lease. It gives the other services the
// node's addresses, and writes Events, which no other service takes, into the log.
func runStandalone(ctx context.Context, cfg *Config, s *service.Service) error {
	delivery, err := api.NewDelivery(s, cfg.Kubelet, eventlog.Sink{Log: s.Log}, nil)
	if err != nil {
		return err
	}
	loop := schedule.New(s.Pulse.Turn)
	if err := loop.Add(addressesJob(cfg, s, nodebus.Watch(s, nil))); err != nil {
		return err
	}
	s.Go("jobs", loop.Run)
	s.Go("event delivery", delivery.Run)
	s.Ready("standalone: no apiserver to report to, Events go to the log")
	return s.Run(ctx)
}

// addressesJob gives the other services the node's addresses. A failure is logged once, until it is another.
func addressesJob(cfg *Config, s *service.Service, entries *nodebus.Entries) schedule.Job {
	settings, period, failed := cfg.settings(), cfg.Kubelet.Kubelet.NodeStatusUpdateFrequency.Duration, ""
	return schedule.Job{Name: jobAddresses, Deadline: 5 * time.Second, Run: func(ctx context.Context) time.Duration {
		addresses, err := settings.Addresses(ctx, observe.HostNetwork{})
		if err == nil {
			failed = ""
			entries.Addresses(addresses)
			entries.Complete()
		} else if failed != err.Error() {
			failed = err.Error()
			s.Log.Warn("the node's addresses cannot be found", logkey.Err, err)
		}
		return period
	}}
}
