package nodeapi

import (
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
	return service.Define(service.Definition{
		Role:         role.NodeAPI,
		Short:        "Serve the kubelet's HTTPS API",
		NeedsKubelet: true, // it shows all of it at /configz
		Bind:         cfg.AddFlags,
		Nice:         10, // who reads logs must not keep a pod from starting
		MemoryLimit:  service.Bytes(1 << 30),
		OOMScoreAdj:  service.Expendable,
	}, func(s service.Config, k *kubeletconfig.Config) Config {
		c := cfg
		c.Service, c.Kubelet = s, k
		return c
	}, Run)
}
