package pleg

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/services/internal/kubeletconfig"
	"github.com/microlet/microlet/services/internal/service"
)

// Command returns the command line of pleg.
func Command() *cobra.Command { return Definition().Command() }

// Definition returns pleg with flags of its own.
func Definition() service.Definition {
	cfg := DefaultConfig()
	with := func(s service.Config) Config {
		c := cfg
		c.Service = s
		return c
	}
	return service.Definition{
		Role:  role.PLEG,
		Short: "Turn what the runtime does into pod lifecycle events",
		Bind:  cfg.AddFlags,
		Run: func(ctx context.Context, s service.Config, _ *kubeletconfig.Config) error {
			return Run(ctx, with(s))
		},
		Validate: func(s service.Config, _ *kubeletconfig.Config) error {
			c := with(s)
			return c.Validate()
		},
	}
}
