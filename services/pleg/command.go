package pleg

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/services/internal/kubeletconfig"
	"github.com/microlet/microlet/services/internal/service"
)

// Command returns pleg's command line.
func Command() *cobra.Command {
	cfg := DefaultConfig()
	return service.Command(role.PLEG, "turn what the runtime does into pod lifecycle events", false, cfg.AddFlags,
		func(ctx context.Context, s service.Config, _ *kubeletconfig.Config) error {
			cfg.Service = s
			return Run(ctx, cfg)
		})
}
