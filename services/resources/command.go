package resources

import (
	"path/filepath"
	"slices"

	"github.com/spf13/cobra"

	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/services/internal/kubeletconfig"
	"github.com/microlet/microlet/services/internal/service"
)

// Command returns the command line of resources.
func Command() *cobra.Command { return Definition().Command() }

// Definition returns resources with flags of its own.
func Definition() service.Definition {
	cfg := DefaultConfig()
	return service.Define(service.Definition{
		Role:           role.Resources,
		Short:          "Hand out the devices of device plugins, and serve the podresources API",
		NeedsKubelet:   true,
		KubeletFields:  slices.Concat(service.KubeletFields(), KubeletFields()),
		Bind:           cfg.AddFlags,
		MemoryLimit:    service.Bytes(1 << 30),
		PrivateNetwork: service.Always,
		Folders:        func(*kubeletconfig.Config) []string { return []string{cfg.DevicePluginsDir} },
		OnDemand: &service.OnDemand{
			Sockets: func(k *kubeletconfig.Config) []service.Socket {
				return []service.Socket{cfg.registrationSocket(), podResourcesSocket(k)}
			},
			Needed: func(*kubeletconfig.Config) bool { return needed(cfg.DevicePluginsDir) },
		},
	}, func(s service.Config, k *kubeletconfig.Config) Config {
		c := cfg
		c.Service, c.Kubelet = s, k
		return c
	}, Run)
}

// registrationSocket is where plugins register. Those that are registered with an earlier agent look for the end of
// their own sockets, or for this one, to register again.
func (c *Config) registrationSocket() service.Socket {
	return service.Socket{Path: filepath.Join(c.DevicePluginsDir, socketName), Clear: true}
}

// podResourcesSocket is where the podresources API is.
func podResourcesSocket(k *kubeletconfig.Config) service.Socket {
	return service.Socket{Path: filepath.Join(k.Node.RootDir, "pod-resources", socketName)}
}

// socketName is the kubelet's name for its sockets.
const socketName = "kubelet.sock"
