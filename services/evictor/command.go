package evictor

import (
	"slices"

	"github.com/spf13/cobra"

	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/services/internal/diskusage"
	"github.com/microlet/microlet/services/internal/kubeletconfig"
	"github.com/microlet/microlet/services/internal/service"
)

// RunChild is what a program that contains evictor calls first of all. If the process was started to measure
// directories for evictor, it does so, and returns true when the program is to end.
func RunChild() bool { return diskusage.RunChild() }

// Command returns the command line of evictor.
func Command() *cobra.Command { return Definition().Command() }

// Definition returns evictor with flags of its own.
func Definition() service.Definition {
	return service.Define(service.Definition{
		Role:           role.Evictor,
		Short:          "Watch the node's memory, disks and process IDs, and evict pods when they run out",
		NeedsKubelet:   true,
		KubeletFields:  slices.Concat(service.KubeletFields(), KubeletFields()),
		MemoryLimit:    service.Bytes(1 << 30),
		PrivateNetwork: service.Always,
	}, func(s service.Config, k *kubeletconfig.Config) Config {
		return Config{Service: s, Kubelet: k}
	}, Run)
}
