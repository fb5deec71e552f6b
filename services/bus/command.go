package bus

import (
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
	return service.Define(service.Definition{
		Role:           role.Bus,
		Short:          "Carry state and hints between the services",
		Bind:           cfg.AddFlags,
		StopStage:      2, // the others' last words go over it
		MemoryLimit:    service.Bytes(2 << 30),
		HeapTarget:     900 << 20, // a full store takes the rest of the limit
		PrivateNetwork: func() bool { return cfg.ViewAddress == "" },
	}, func(s service.Config, _ *kubeletconfig.Config) Config {
		c := cfg
		c.Service = s
		return c
	}, Run)
}
