package podsync

import (
	"github.com/spf13/cobra"

	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/services/internal/clientcert"
	"github.com/microlet/microlet/services/internal/kubeletconfig"
	"github.com/microlet/microlet/services/internal/service"
)

// Command returns the command line of podsync.
func Command() *cobra.Command { return Definition().Command() }

// Definition returns podsync with flags of its own.
func Definition() service.Definition {
	cfg := DefaultConfig()
	return service.Define(service.Definition{
		Role:         role.Podsync,
		Short:        "Run the node's pods",
		NeedsKubelet: true,
		Credentials:  clientcert.Credentials{},
		Bind:         cfg.AddFlags,
		KeptFiles:    1, // its inhibitor of shutdown
		StopStage:    1, // the others reach the runtime through it
		// No limit: its end would cut what it does for all pods.
		HeapTarget: 1 << 30,
	}, func(s service.Config, k *kubeletconfig.Config) Config {
		c := cfg
		c.Service, c.Kubelet = s, k
		return c
	}, Run)
}
