package cgroups

import (
	"log/slog"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/microlet/microlet/services/internal/kubeletconfig"
)

// Configured returns the options of a Manager that the configuration names. Driver is the cgroup driver. The caller
// adds what the node has.
func Configured(config *kubeletconfig.Config, driver string, metrics prometheus.Registerer, log *slog.Logger) Options {
	k := &config.Kubelet
	o := Options{
		MemoryThrottlingFactor: k.MemoryThrottlingFactor, MemoryReservation: config.ReservesMemory(),
		QOSReserved: config.QOSReserved(),
		Root:        k.CgroupRoot, Driver: driver, PerQOS: *k.CgroupsPerQOS,
		CPUCFSQuota: *k.CPUCFSQuota, CPUCFSQuotaPeriod: k.CPUCFSQuotaPeriod.Duration,
		PodPidsLimit: *k.PodPidsLimit, EnforceNodeAllocatable: k.EnforceNodeAllocatable, Metrics: metrics, Log: log,
	}
	if !config.FeatureEnabled("MemoryQoS") {
		o.MemoryThrottlingFactor, o.Metrics = nil, nil
	}
	return o
}
