package evictor

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/services/evictor/internal/manager"
	"github.com/microlet/microlet/services/evictor/internal/threshold"
	"github.com/microlet/microlet/services/internal/kubeletconfig"
	"github.com/microlet/microlet/services/internal/service"
)

// enforcePods is the entry of enforceNodeAllocatable that limits the cgroup of all pods.
const enforcePods = "pods"

// Config configures evictor.
type Config struct {
	// Service configures every service; its NodeName must be set.
	Service service.Config
	// Kubelet is the node's configuration.
	Kubelet *kubeletconfig.Config
	// Period is how often the signals are read when no threshold is near. Default: 10 s, as with the kubelet.
	Period time.Duration
}

// defaultPeriod is the kubelet's evictionMonitoringPeriod.
const defaultPeriod = 10 * time.Second

// KubeletFields are the fields of the kubelet's configuration that the service reads.
func KubeletFields() []string {
	return []string{
		"cgroupRoot", "enforceNodeAllocatable", "evictionHard", "evictionMaxPodGracePeriod", "evictionMinimumReclaim",
		"evictionPressureTransitionPeriod", "evictionSoft", "evictionSoftGracePeriod", "featureGates",
		"localStorageCapacityIsolation", "node.rootDir", "podLogsDir",
		"volumeStatsAggPeriod",
	}
}

// Validate says what is wrong with the config: field, value, remedy.
func (c *Config) Validate() error {
	if c.Kubelet == nil {
		return kubeletconfig.Missing(role.Evictor)
	}
	errs := []error{c.Service.ValidateOnNode()}
	if c.Period < 0 {
		errs = append(errs, fmt.Errorf("period is %v: give a positive one, or 0 for the default", c.Period))
	}
	if d := c.Kubelet.Kubelet.EvictionPressureTransitionPeriod.Duration; d < 0 {
		errs = append(errs, fmt.Errorf("evictionPressureTransitionPeriod is %v: give 0 or more", d))
	}
	_, err := c.thresholds()
	return errors.Join(append(errs, err)...)
}

func (c *Config) thresholds() ([]threshold.Threshold, error) {
	k := c.Kubelet
	return threshold.Parse(threshold.Config{
		Hard: k.Kubelet.EvictionHard, Soft: k.Kubelet.EvictionSoft, SoftGracePeriod: k.Kubelet.EvictionSoftGracePeriod,
		MinimumReclaim: k.Kubelet.EvictionMinimumReclaim,
		EnforcePods:    slices.Contains(k.Kubelet.EnforceNodeAllocatable, enforcePods),
	})
}

// storageSlack is how old a figure of what a pod takes of the disk may be, beyond two periods. Those count too of which
// stats says that its walks take longer.
const storageSlack = 30 * time.Second

// logsPeriod is how often stats measures the logs of pods where volumeStatsAggPeriod is negative, so that volumes are
// not measured.
const logsPeriod = time.Minute

func (c *Config) localStorage() manager.LocalStorage {
	k := c.Kubelet
	period := k.Kubelet.VolumeStatsAggPeriod.Duration
	if period <= 0 {
		period = logsPeriod
	}
	return manager.LocalStorage{
		Enforced: *k.Kubelet.LocalStorageCapacityIsolation,
		MaxAge:   2*period + storageSlack,
	}
}

func (c *Config) period() time.Duration {
	if c.Period == 0 {
		return defaultPeriod
	}
	return c.Period
}
