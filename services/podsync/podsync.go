package podsync

import (
	"context"

	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/services/internal/service"
	"github.com/microlet/microlet/services/podsync/internal/rootdir"
)

// Run runs podsync until ctx ends. What runs of the node's pods goes on running.
func Run(ctx context.Context, cfg Config) error {
	if err := cfg.Validate(); err != nil {
		return err
	}
	unlock, err := rootdir.Dir(cfg.Kubelet.Node.RootDir).Lock()
	if err != nil {
		return err
	}
	defer unlock()
	s, err := service.New(cfg.Service, role.Podsync)
	if err != nil {
		return err
	}
	n, err := newNode(s, cfg)
	if err != nil {
		return err
	}
	defer n.close()
	if err := n.prepare(); err != nil {
		return err
	}
	s.Go("gateway", n.serveGateway)
	s.Go("events", n.events.Run)
	s.Go("objects", n.objects.Run)
	s.Go("dispatcher", n.dispatcher.Run)
	n.startSources()
	s.Go("runtime monitor", n.monitor.Run)
	if n.firewall != nil {
		s.Go("firewall", n.firewall.Run)
	}
	s.Go("relist", n.relister.Run)
	s.Go("clean-up", n.runCleanup)
	s.Go("helper pods", func(ctx context.Context) error { return n.helperPods.Sweep(ctx, n.workers) })
	s.Go("container logs", n.rotateLogs)
	s.Go("upkeep", n.upkeep)
	s.Go("probe assignment", n.assigner.Run)
	return s.Run(ctx)
}
