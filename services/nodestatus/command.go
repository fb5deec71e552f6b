package nodestatus

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/services/internal/kubeletconfig"
	"github.com/microlet/microlet/services/internal/service"
)

// Command returns nodestatus's command line.
func Command() *cobra.Command {
	cfg := DefaultConfig()
	return service.Command(role.NodeStatus, "report the node to the apiserver: Node, Lease and Events", true, nil,
		func(ctx context.Context, s service.Config, k *kubeletconfig.Config) error {
			cfg.Service, cfg.Kubelet = s, k
			return Run(ctx, cfg)
		})
}
