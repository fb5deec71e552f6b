package resources

import (
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/services/internal/kubeletconfig"
	"github.com/microlet/microlet/services/internal/service"
	"github.com/microlet/microlet/services/resources/internal/devices"
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
		Hidden:         hidden,
		OnDemand: &service.OnDemand{
			Sockets: func(k *kubeletconfig.Config) []service.Socket {
				return []service.Socket{cfg.registrationSocket(), podResourcesSocket(k)}
			},
			Needed: func(*kubeletconfig.Config) bool { return devices.Needed(cfg.DevicePluginsDir) },
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

// hidden are what CAP_DAC_OVERRIDE would open for the service and nothing of its job needs: the sockets by which a
// caller becomes root, first of all the runtime's and that of its plugins (NRI), credentials of the node, and volumes
// of pods.
func hidden(k *kubeletconfig.Config) []string {
	paths := []string{
		"/run/containerd", "/run/crio", "/run/docker", "/run/docker.sock", "/run/nri", "/run/podman", "/run/buildkit",
		"/run/dbus", "/run/systemd", "/run/user",
		"/etc/kubernetes", "/home", "/root", k.Node.CertDir, filepath.Join(k.Node.RootDir, "pods"),
	}
	for _, endpoint := range []string{k.Kubelet.ContainerRuntimeEndpoint, k.Kubelet.ImageServiceEndpoint} {
		socket, ok := strings.CutPrefix(endpoint, "unix://")
		if !ok || !filepath.IsAbs(socket) {
			continue
		}
		// The folder too: the runtime's next socket would be another file.
		paths = append(paths, filepath.Dir(socket), socket)
	}
	return slices.DeleteFunc(paths, func(path string) bool {
		return !filepath.IsAbs(path) || path == "/run" || path == "/var/run" || path == "/"
	})
}
