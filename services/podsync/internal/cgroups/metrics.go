package cgroups

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"
)

// protectedMemory is the kubelet's metrics of the feature gate MemoryQoS.
type protectedMemory struct{ hard, soft prometheus.Gauge }

func newProtectedMemory() protectedMemory {
	return protectedMemory{
		hard: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "kubelet_memory_qos_node_memory_min_bytes",
			Help: "[ALPHA] Total cgroup v2 memory.min in bytes for Guaranteed pods. This memory is hard-reserved and " +
				"never reclaimed by the kernel.",
		}),
		soft: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "kubelet_memory_qos_node_memory_low_bytes",
			Help: "[ALPHA] Total cgroup v2 memory.low in bytes for Burstable pods. This memory is soft-reserved and may " +
				"be reclaimed under extreme pressure.",
		}),
	}
}

func (p protectedMemory) register(r prometheus.Registerer) error {
	return errors.Join(r.Register(p.hard), r.Register(p.soft))
}
