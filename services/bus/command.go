package bus

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/services/internal/kubeletconfig"
	"github.com/microlet/microlet/services/internal/service"
)

// Command returns the command line of the bus.
func Command() *cobra.Command { return Definition().Command() }

// Definition returns the bus with flags of its own.
func Definition() service.Definition {
	cfg := DefaultConfig()
	with := func(s service.Config) Config {
		c := cfg
		c.Service = s
		return c
	}
	return service.Definition{
		Role:  role.Bus,
		Short: "Carry state and hints between the services",
		Bind:  cfg.AddFlags,
		Run: func(ctx context.Context, s service.Config, _ *kubeletconfig.Config) error {
			return Run(ctx, with(s))
		},
		Validate: func(s service.Config, _ *kubeletconfig.Config) error {
			c := with(s)
			return c.Validate()
		},
		StopStage: 2, // the others' last words go over it
	}
}
