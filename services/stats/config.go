package stats

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/services/internal/kubeletconfig"
	"github.com/microlet/microlet/services/internal/service"
)

// Defaults of Config.
const (
	// DefaultMemoryLimit is several times what stats takes on a node with a hundred pods, and little enough that a leak
	// ends before the node feels it.
	DefaultMemoryLimit = "768Mi"
	// DefaultIdlePeriod is the period of metrics-server's own default: the first figures after a pause come with a rate.
	DefaultIdlePeriod = time.Minute
)

// minMemoryLimit is what stats needs to start.
var minMemoryLimit = resource.MustParse("32Mi")

// Config configures stats.
type Config struct {
	// Service configures every service; its NodeName must be set.
	Service service.Config
	// Kubelet is the node's configuration.
	Kubelet *kubeletconfig.Config
	// MemoryLimit is what the process may take, as a quantity such as "768Mi"; past it the kernel kills it, and it is
	// started again. "microlet up" enforces it by a cgroup of the process's own. "0" is no limit. Default: 768Mi.
	MemoryLimit string
	// IdlePeriod is how often figures are taken without a request. Default: 1 m.
	IdlePeriod time.Duration
}

// DefaultConfig returns the defaults; Kubelet has none.
func DefaultConfig() Config {
	return Config{Service: service.DefaultConfig(), MemoryLimit: DefaultMemoryLimit, IdlePeriod: DefaultIdlePeriod}
}

// KubeletFields are the fields of the kubelet's configuration that the service reads.
func KubeletFields() []string {
	return []string{
		"cgroupRoot", "featureGates", "kubeletCgroups", "podLogsDir", "systemCgroups", "volumeStatsAggPeriod",
		"node.housekeepingInterval", "node.rootDir", "node.runtimeCgroups",
	}
}

// AddFlags adds stats' own flags.
func (c *Config) AddFlags(fs *pflag.FlagSet) {
	fs.StringVar(&c.MemoryLimit, "memory-limit", c.MemoryLimit,
		"memory that stats may take before it is killed and restarted; 0 is no limit")
	fs.DurationVar(&c.IdlePeriod, "idle-period", c.IdlePeriod, "how often figures are taken without a request")
}

// Validate says what is wrong with the config: field, value, remedy.
func (c *Config) Validate() error {
	if c.Kubelet == nil {
		return kubeletconfig.Missing(role.Stats)
	}
	errs := []error{c.Service.ValidateOnNode()}
	if _, err := c.MemoryBytes(); err != nil {
		errs = append(errs, err)
	}
	if c.IdlePeriod < time.Second {
		errs = append(errs, fmt.Errorf("idle-period is %v: give 1s or more", c.IdlePeriod))
	}
	if d := c.Kubelet.Node.HousekeepingInterval.Duration; d < time.Second {
		errs = append(errs, fmt.Errorf("housekeeping-interval is %v: give 1s or more", d))
	}
	for name, cgroup := range map[string]string{
		"kubeletCgroups": c.Kubelet.Kubelet.KubeletCgroups, "systemCgroups": c.Kubelet.Kubelet.SystemCgroups,
		"runtime-cgroups": c.Kubelet.Node.RuntimeCgroups,
	} {
		if cgroup != "" && (!filepath.IsAbs(cgroup) || strings.Contains(cgroup, "..")) {
			errs = append(errs, fmt.Errorf("%s is %q: give an absolute path without \"..\"", name, cgroup))
		}
	}
	return errors.Join(errs...)
}

// MemoryBytes is MemoryLimit in bytes; 0 is no limit.
func (c *Config) MemoryBytes() (int64, error) {
	q, err := resource.ParseQuantity(c.MemoryLimit)
	if err != nil {
		return 0, fmt.Errorf("memory-limit is %q: give a quantity such as 768Mi, or 0", c.MemoryLimit)
	}
	if !q.IsZero() && q.Cmp(minMemoryLimit) < 0 {
		return 0, fmt.Errorf("memory-limit is %s: give %s or more, or 0 for none", c.MemoryLimit, minMemoryLimit.String())
	}
	return q.Value(), nil
}
