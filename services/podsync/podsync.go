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
	root := rootdir.Dir(cfg.Kubelet.Node.RootDir)
	unlock, err := root.Lock()
	if err != nil {
		return err
	}
	defer unlock()
	s, err := service.New(cfg.Service, role.Podsync)
	if err != nil {
		return err
	}
	env, err := newEnvironment(ctx, s, &cfg)
	if err != nil {
		return err
	}
	defer env.runtime.Close()
	pods, err := newPodWork(ctx, s, &cfg, env)
	if err != nil {
		return err
	}
	if err := root.Make(s.Log); err != nil {
		return err
	}
	if err := pods.resources.prepare(); err != nil {
		return err
	}
	if err := env.start(ctx, s, pods.reports); err != nil {
		return err
	}
	pods.start(ctx, s, env)
	return s.Run(ctx)
}
