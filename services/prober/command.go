package prober

import (
	"slices"

	"github.com/spf13/cobra"

	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/services/internal/kubeletconfig"
	"github.com/microlet/microlet/services/internal/service"
)

// Command returns the command line of the prober.
func Command() *cobra.Command { return Definition().Command() }

// Definition returns the prober with flags of its own.
func Definition() service.Definition {
	cfg := DefaultConfig()
	return service.Define(service.Definition{
		Role:          role.Prober,
		Short:         "Probe containers: startup, liveness, readiness",
		NeedsKubelet:  true,
		KubeletFields: slices.Concat(service.KubeletFields(), KubeletFields()),
		Bind:          cfg.AddFlags,
		MemoryLimit:   service.Bytes(1 << 30),
		OOMScoreAdj:   service.Expendable,
	}, func(s service.Config, k *kubeletconfig.Config) Config {
		c := cfg
		c.Service, c.Kubelet = s, k
		return c
	}, Run)
}
