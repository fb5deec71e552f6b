package nodeapi

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/services/internal/kubeletconfig"
	"github.com/microlet/microlet/services/internal/service"
)

// Command returns the command line of nodeapi.
func Command() *cobra.Command { return Definition().Command() }

// Definition returns nodeapi with flags of its own.
func Definition() service.Definition {
	cfg := DefaultConfig()
	with := func(s service.Config, k *kubeletconfig.Config) Config {
		c := cfg
		c.Service, c.Kubelet = s, k
		return c
	}
	return service.Definition{
		Role:         role.NodeAPI,
		Short:        "Serve the kubelet's HTTPS API",
		NeedsKubelet: true, // it shows all of it at /configz
		Bind:         cfg.AddFlags,
		Run: func(ctx context.Context, s service.Config, k *kubeletconfig.Config) error {
			return Run(ctx, with(s, k))
		},
		Validate: func(s service.Config, k *kubeletconfig.Config) error {
			c := with(s, k)
			return c.Validate()
		},
		Nice: 10, // who reads logs must not keep a pod from starting
	}
}
