package stats

import (
	"slices"

	"github.com/spf13/cobra"

	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/services/internal/diskusage"
	"github.com/microlet/microlet/services/internal/kubeletconfig"
	"github.com/microlet/microlet/services/internal/service"
)

// nice lets the services that run pods go first where there is too little processor for all.
const nice = 10

// RunChild is what a program that contains stats calls first of all. If the process was started to measure directories
// for stats, it does that, and returns true when the program is to end.
func RunChild() bool { return diskusage.RunChild() }

// Command returns the command line of stats.
func Command() *cobra.Command { return Definition().Command() }

// Definition returns stats with flags of its own.
func Definition() service.Definition {
	cfg := DefaultConfig()
	return service.Define(service.Definition{
		Role:          role.Stats,
		Short:         "Measure what the node, its pods and their containers use",
		NeedsKubelet:  true,
		KubeletFields: slices.Concat(service.KubeletFields(), KubeletFields()),
		Bind:          cfg.AddFlags,
		Nice:          nice,
		OOMScoreAdj:   service.Expendable,
		MemoryLimit: func() int64 {
			limit, err := cfg.MemoryBytes()
			if err != nil {
				return 0 // Validate refuses it
			}
			return limit
		},
	}, func(s service.Config, k *kubeletconfig.Config) Config {
		c := cfg
		c.Service, c.Kubelet = s, k
		return c
	}, Run)
}
