package prober

import (
	"context"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/services/internal/outbox"
	"github.com/microlet/microlet/services/internal/service"
	"github.com/microlet/microlet/services/prober/internal/manager"
	"github.com/microlet/microlet/services/prober/internal/pluginhost"
	"github.com/microlet/microlet/services/prober/internal/probe"
)

// Run runs the prober until ctx ends.
func Run(ctx context.Context, cfg Config) error {
	if err := cfg.Validate(); err != nil {
		return err
	}
	s, runtime, err := service.NewWithCRI(cfg.Service, role.Prober)
	if err != nil {
		return err
	}
	defer runtime.Close()
	o := probe.Options{
		Runtime: runtimeapi.NewRuntimeServiceClient(runtime),
		Execs:   cfg.Execs,
		H2C:     cfg.Kubelet.FeatureEnabled("H2CContainerProbe"),
		GRPCTLS: cfg.Kubelet.FeatureEnabled("GRPCContainerProbeTLS"),
	}
	if cfg.PluginDir != "" {
		host := pluginhost.New(cfg.PluginDir, s.Config.SocketDir(s.Role), s.Log)
		defer host.Close()
		o.Plugins = host
	}
	events := outbox.NewRecorder(s.Bus, cfg.Service.NodeName, s.Log)
	m := manager.Watch(manager.Options{
		Replica: s.Config.Replica,
		Prober:  probe.New(o), Tracer: s.Tracer,
		Events: events, Metrics: manager.NewMetrics(s.Metrics), Turned: s.Pulse.Turn, Log: s.Log,
		Ready: func() { s.Ready("probing") },
	}, s.Bus)
	s.Go("events", events.Run)
	s.Go("probes", m.Run)
	s.Started("waiting for the pods of podsync")
	return s.Run(ctx)
}
