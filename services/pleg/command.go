package pleg

import (
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
	return service.Define(service.Definition{
		Role:           role.PLEG,
		Short:          "Turn what the runtime does into pod lifecycle events",
		Bind:           cfg.AddFlags,
		MemoryLimit:    service.Bytes(512 << 20),
		PrivateNetwork: service.Always,
	}, func(s service.Config, _ *kubeletconfig.Config) Config {
		c := cfg
		c.Service = s
		return c
	}, Run)
}
