package nodeapi

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/services/internal/kubeletconfig"
	"github.com/microlet/microlet/services/internal/service"
)

// Command returns nodeapi's command line.
func Command() *cobra.Command {
	cfg := DefaultConfig()
	return service.Command(role.NodeAPI, "serve the kubelet's HTTPS API: logs, exec, port-forward, metrics", true,
		cfg.AddFlags,
		func(ctx context.Context, s service.Config, k *kubeletconfig.Config) error {
			cfg.Service, cfg.Kubelet = s, k
			return Run(ctx, cfg)
		})
}
