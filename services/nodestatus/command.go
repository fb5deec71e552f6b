package nodestatus

import (
	"slices"

	"github.com/spf13/cobra"

	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/services/internal/clientcert"
	"github.com/microlet/microlet/services/internal/kubeletconfig"
	"github.com/microlet/microlet/services/internal/service"
)

// Command returns the command line of nodestatus.
func Command() *cobra.Command { return Definition().Command() }

// Definition returns nodestatus with flags of its own.
func Definition() service.Definition {
	cfg := DefaultConfig()
	return service.Define(service.Definition{
		Role:          role.NodeStatus,
		Short:         "Register the node and keep its status and Lease",
		NeedsKubelet:  true,
		Credentials:   clientcert.Credentials{},
		KubeletFields: slices.Concat(service.KubeletFields(), KubeletFields()),
		MemoryLimit:   service.Bytes(512 << 20),
	}, func(s service.Config, k *kubeletconfig.Config) Config {
		c := cfg
		c.Service, c.Kubelet = s, k
		return c
	}, Run)
}
