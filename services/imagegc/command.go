package imagegc

import (
	"slices"

	"github.com/spf13/cobra"

	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/services/internal/kubeletconfig"
	"github.com/microlet/microlet/services/internal/service"
)

// nice lets the services that run pods go first where there is too little processor for all.
const nice = 5

// Command returns the command line of imagegc.
func Command() *cobra.Command { return Definition().Command() }

// Definition returns imagegc with flags of its own.
func Definition() service.Definition {
	cfg := DefaultConfig()
	return service.Define(service.Definition{
		Role:           role.ImageGC,
		Short:          "Remove unused images, and list the node's images",
		NeedsKubelet:   true,
		KubeletFields:  slices.Concat(service.KubeletFields(), KubeletFields()),
		Bind:           cfg.AddFlags,
		Nice:           nice,
		StateDir:       func() string { return cfg.StateDir },
		MemoryLimit:    service.Bytes(1 << 30),
		PrivateNetwork: service.Always,
		OOMScoreAdj:    service.Expendable,
	}, func(s service.Config, k *kubeletconfig.Config) Config {
		c := cfg
		c.Service, c.Kubelet = s, k
		return c
	}, Run)
}
