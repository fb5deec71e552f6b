package claims

import (
	"github.com/prometheus/client_golang/prometheus"
	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
)

// gauge is one of the kubelet's metrics of claims.
type gauge struct {
	vector *prometheus.GaugeVec
	of     func(*statsapi.FsStats) *uint64
}

// newGauges returns gauges without values: each scrape has its own.
func newGauges() []gauge {
	return []gauge{
		{prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "kubelet_volume_stats_capacity_bytes",
			Help: "[ALPHA] Capacity in bytes of the volume"}, []string{"namespace", "persistentvolumeclaim"}),
			func(f *statsapi.FsStats) *uint64 { return f.CapacityBytes }},
		{prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "kubelet_volume_stats_available_bytes",
			Help: "[ALPHA] Number of available bytes in the volume"}, []string{"namespace", "persistentvolumeclaim"}),
			func(f *statsapi.FsStats) *uint64 { return f.AvailableBytes }},
		{prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "kubelet_volume_stats_used_bytes",
			Help: "[ALPHA] Number of used bytes in the volume"}, []string{"namespace", "persistentvolumeclaim"}),
			func(f *statsapi.FsStats) *uint64 { return f.UsedBytes }},
		{prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "kubelet_volume_stats_inodes",
			Help: "[ALPHA] Maximum number of inodes in the volume"}, []string{"namespace", "persistentvolumeclaim"}),
			func(f *statsapi.FsStats) *uint64 { return f.Inodes }},
		{prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "kubelet_volume_stats_inodes_free",
			Help: "[ALPHA] Number of free inodes in the volume"}, []string{"namespace", "persistentvolumeclaim"}),
			func(f *statsapi.FsStats) *uint64 { return f.InodesFree }},
		{prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "kubelet_volume_stats_inodes_used",
			Help: "[ALPHA] Number of used inodes in the volume"}, []string{"namespace", "persistentvolumeclaim"}),
			func(f *statsapi.FsStats) *uint64 { return f.InodesUsed }},
	}
}
