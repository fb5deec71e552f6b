package resources

import (
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/spf13/pflag"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/services/internal/kubeletconfig"
	"github.com/microlet/microlet/services/internal/service"
)

// defaultWait is how long a node may take from its boot until its plugins have registered.
const defaultWait = 3 * time.Minute

// Config configures resources.
type Config struct {
	// Service configures every service.
	Service service.Config
	// Kubelet is the node's configuration.
	Kubelet *kubeletconfig.Config
	// DevicePluginsDir is the folder in which plugins have their sockets and register, with the kubelet's checkpoint.
	// Plugins know it as /var/lib/kubelet/device-plugins, the default, whatever the kubelet's root folder is.
	DevicePluginsDir string
	// PluginWait is how long a pod waits for the plugin of a resource that the node had, after a reboot for example,
	// before it is rejected. Default: 3 min.
	PluginWait time.Duration
}

// DefaultConfig returns the defaults; Kubelet has none.
func DefaultConfig() Config {
	return Config{
		Service: service.DefaultConfig(), DevicePluginsDir: filepath.Clean(pluginapi.DevicePluginPath),
		PluginWait: defaultWait,
	}
}

// KubeletFields are the fields of the kubelet's configuration that the service reads, and those that say what the
// supervisor hides from it.
func KubeletFields() []string {
	return []string{"containerRuntimeEndpoint", "imageServiceEndpoint", "node.certDir", "node.rootDir"}
}

// AddFlags adds resources' own flags.
func (c *Config) AddFlags(fs *pflag.FlagSet) {
	fs.StringVar(&c.DevicePluginsDir, "device-plugins-dir", c.DevicePluginsDir,
		"folder in which device plugins have their sockets and register; plugins know the default alone")
	fs.DurationVar(&c.PluginWait, "device-plugin-wait", c.PluginWait,
		"how long a pod waits for the plugin of a device that the node had; 0 rejects it at once")
}

// Validate says what is wrong with the config: field, value, remedy.
func (c *Config) Validate() error {
	if c.Kubelet == nil {
		return kubeletconfig.Missing(role.Resources)
	}
	errs := []error{c.Service.Validate()}
	if d := c.DevicePluginsDir; !filepath.IsAbs(d) || filepath.Clean(d) != d || d == "/" {
		errs = append(errs, fmt.Errorf("device-plugins-dir is %q: give an absolute path without \"..\"", d))
	}
	if c.PluginWait < 0 {
		errs = append(errs, fmt.Errorf("device-plugin-wait is %v: give 0 or more", c.PluginWait))
	}
	return errors.Join(errs...)
}
