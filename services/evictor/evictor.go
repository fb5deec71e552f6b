package evictor

import (
	"context"

	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/services/internal/service"
)

// Run runs evictor until ctx ends. An eviction that it has asked for goes on.
func Run(ctx context.Context, cfg Config) error {
	if err := cfg.Validate(); err != nil {
		return err
	}
	s, err := service.New(cfg.Service, role.Evictor)
	if err != nil {
		return err
	}
	s.Ready("watching the node's resources")
	return s.Run(ctx)
}
