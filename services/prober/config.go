package prober

import (
	"errors"
	"fmt"
	"path/filepath"

	"github.com/spf13/pflag"

	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/services/internal/kubeletconfig"
	"github.com/microlet/microlet/services/internal/service"
)

// Defaults of Config.
const (
	DefaultExecs     = 8
	DefaultPluginDir = "/opt/microlet/probe-plugins"
)

// Config configures the prober.
type Config struct {
	// Service configures every service; its NodeName must be set.
	Service service.Config
	// Kubelet is the node's configuration, of which the feature gates H2CContainerProbe and
	// GRPCContainerProbeTLS are read.
	Kubelet *kubeletconfig.Config
	// Execs is how many commands may be starting in containers at one time. A command that takes
	// longer than 2 s makes room for the next. Default: 8.
	Execs int
	// PluginDir is the folder of the probe plugins. Default: /opt/microlet/probe-plugins; empty allows none.
	PluginDir string
}

// DefaultConfig returns the defaults; Kubelet has none.
func DefaultConfig() Config {
	return Config{Service: service.DefaultConfig(), Execs: DefaultExecs, PluginDir: DefaultPluginDir}
}

// KubeletFields are the fields of the kubelet's configuration that the service reads.
func KubeletFields() []string { return []string{"featureGates"} }

// AddFlags adds the prober's own flags.
func (c *Config) AddFlags(fs *pflag.FlagSet) {
	fs.StringVar(&c.PluginDir, "probe-plugin-dir", c.PluginDir,
		"folder of the probe plugins that pods may name; empty allows none")
	fs.IntVar(&c.Execs, "probe-execs", c.Execs, "how many exec probes may be starting at one time")
}

// Validate says what is wrong with the config: field, value, remedy.
func (c *Config) Validate() error {
	if c.Kubelet == nil {
		return kubeletconfig.Missing(role.Prober)
	}
	errs := []error{c.Service.ValidateOnNode()}
	if r := c.Service.Replica; r != service.AutoReplica && !service.IsReplica(r) {
		errs = append(errs, fmt.Errorf("replica is %q: give %q, or a number from 0 to %d, because podsync gives pods to no "+
			"other prober", r, service.AutoReplica, service.MaxReplicas-1))
	}
	if c.PluginDir != "" && !filepath.IsAbs(c.PluginDir) {
		errs = append(errs, fmt.Errorf("probe-plugin-dir is %q: give an absolute path", c.PluginDir))
	}
	if c.Execs < 1 {
		errs = append(errs, fmt.Errorf("probe-execs is %d: give 1 or more", c.Execs))
	}
	return errors.Join(errs...)
}
