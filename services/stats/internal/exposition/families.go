package exposition

import "github.com/google/cadvisor/lib/model"

// family is a family of metrics of cgroups.
type family struct {
	name, kind, help string
	write            func(s *series, stats *model.ContainerStats)
	// when says of which cgroups the family has metrics; nil is all.
	when func(spec *model.ContainerSpec) bool
	// untimed: the metrics have no time.
	untimed bool
	// pressure: only where the kernel measures pressure.
	pressure bool
}

// families are those of the kubelet's cAdvisor, by name, with cAdvisor's words. container_sockets is not among them:
// see measure.
var families = []family{
	{
		name: "container_blkio_device_usage_total", kind: counter,
		help:  "Blkio Device bytes usage",
		write: writeDevices,
	},
	{
		name: "container_cpu_cfs_burst_periods_total", kind: counter,
		help:  "Number of periods when burst occurs.",
		write: one(func(s *model.ContainerStats) float64 { return float64(s.Cpu.CFS.BurstsPeriods) }),
		when:  hasQuota,
	},
	{
		name: "container_cpu_cfs_burst_seconds_total", kind: counter,
		help:  "Total time duration the container has been bursted.",
		write: one(func(s *model.ContainerStats) float64 { return seconds(s.Cpu.CFS.BurstTime) }),
		when:  hasQuota,
	},
	{
		name: "container_cpu_cfs_periods_total", kind: counter,
		help:  "Number of elapsed enforcement period intervals.",
		write: one(func(s *model.ContainerStats) float64 { return float64(s.Cpu.CFS.Periods) }),
		when:  hasQuota,
	},
	{
		name: "container_cpu_cfs_throttled_periods_total", kind: counter,
		help:  "Number of throttled period intervals.",
		write: one(func(s *model.ContainerStats) float64 { return float64(s.Cpu.CFS.ThrottledPeriods) }),
		when:  hasQuota,
	},
	{
		name: "container_cpu_cfs_throttled_seconds_total", kind: counter,
		help:  "Total time duration the container has been throttled.",
		write: one(func(s *model.ContainerStats) float64 { return seconds(s.Cpu.CFS.ThrottledTime) }),
		when:  hasQuota,
	},
	{
		name: "container_cpu_system_seconds_total", kind: counter,
		help:  "Cumulative system cpu time consumed in seconds.",
		write: one(func(s *model.ContainerStats) float64 { return seconds(s.Cpu.Usage.System) }),
	},
	{
		name: "container_cpu_usage_seconds_total", kind: counter,
		help:  "Cumulative cpu time consumed in seconds.",
		write: writeCPU,
	},
	{
		name: "container_cpu_user_seconds_total", kind: counter,
		help:  "Cumulative user cpu time consumed in seconds.",
		write: one(func(s *model.ContainerStats) float64 { return seconds(s.Cpu.Usage.User) }),
	},
	{
		name: "container_creation_time_seconds", kind: gauge,
		help:    "Container creation time since unix epoch in seconds.",
		write:   spec(func(c *subject) float64 { return float64(c.created.Unix()) }),
		untimed: true,
	},
	{
		name: "container_file_descriptors", kind: gauge,
		help:  "Number of open file descriptors for the container.",
		write: one(func(s *model.ContainerStats) float64 { return float64(s.Processes.FdCount) }),
	},
	{
		name: "container_fs_inodes_free", kind: gauge,
		help:  "Number of available Inodes",
		write: filesystems(func(f *model.FsStats) float64 { return float64(f.InodesFree) }),
	},
	{
		name: "container_fs_inodes_total", kind: gauge,
		help:  "Number of Inodes",
		write: filesystems(func(f *model.FsStats) float64 { return float64(f.Inodes) }),
	},
	{
		name: "container_fs_io_cost_indebt_seconds_total", kind: counter,
		help:  "Cumulative IOCost debt in seconds",
		write: disks(costIndebt, "Count", micro, nil),
	},
	{
		name: "container_fs_io_cost_indelay_seconds_total", kind: counter,
		help:  "Cumulative IOCost delay in seconds",
		write: disks(costIndelay, "Count", micro, nil),
	},
	{
		name: "container_fs_io_cost_usage_seconds_total", kind: counter,
		help:  "Cumulative IOCost usage in seconds",
		write: disks(costUsage, "Count", micro, nil),
	},
	{
		name: "container_fs_io_cost_wait_seconds_total", kind: counter,
		help:  "Cumulative IOCost wait in seconds",
		write: disks(costWait, "Count", micro, nil),
	},
	{
		name: "container_fs_io_current", kind: gauge,
		help: "Number of I/Os currently in progress",
		write: disks(queued, "Total", plain, func(f *model.FsStats) float64 {
			return float64(f.IoInProgress)
		}),
	},
	{
		name: "container_fs_io_time_seconds_total", kind: counter,
		help: "Cumulative count of seconds spent doing I/Os",
		write: disks(serviceTime, "Total", seconds, func(f *model.FsStats) float64 {
			return seconds(f.IoTime)
		}),
	},
	{
		name: "container_fs_io_time_weighted_seconds_total", kind: counter,
		help:  "Cumulative weighted I/O time in seconds",
		write: filesystems(func(f *model.FsStats) float64 { return seconds(f.WeightedIoTime) }),
	},
	{
		name: "container_fs_limit_bytes", kind: gauge,
		help:  "Number of bytes that can be consumed by the container on this filesystem.",
		write: filesystems(func(f *model.FsStats) float64 { return float64(f.Limit) }),
	},
	{
		name: "container_fs_read_seconds_total", kind: counter,
		help: "Cumulative count of seconds spent reading",
		write: disks(serviceTime, "Read", seconds, func(f *model.FsStats) float64 {
			return seconds(f.ReadTime)
		}),
	},
	{
		name: "container_fs_reads_bytes_total", kind: counter,
		help:  "Cumulative count of bytes read",
		write: disks(serviceBytes, "Read", plain, nil),
	},
	{
		name: "container_fs_reads_merged_total", kind: counter,
		help: "Cumulative count of reads merged",
		write: disks(merged, "Read", plain, func(f *model.FsStats) float64 {
			return float64(f.ReadsMerged)
		}),
	},
	{
		name: "container_fs_reads_total", kind: counter,
		help: "Cumulative count of reads completed",
		write: disks(serviced, "Read", plain, func(f *model.FsStats) float64 {
			return float64(f.ReadsCompleted)
		}),
	},
	{
		name: "container_fs_sector_reads_total", kind: counter,
		help: "Cumulative count of sector reads completed",
		write: disks(sectors, "Read", plain, func(f *model.FsStats) float64 {
			return float64(f.SectorsRead)
		}),
	},
	{
		name: "container_fs_sector_writes_total", kind: counter,
		help: "Cumulative count of sector writes completed",
		write: disks(sectors, "Write", plain, func(f *model.FsStats) float64 {
			return float64(f.SectorsWritten)
		}),
	},
	{
		name: "container_fs_usage_bytes", kind: gauge,
		help:  "Number of bytes that are consumed by the container on this filesystem.",
		write: filesystems(func(f *model.FsStats) float64 { return float64(f.Usage) }),
	},
	{
		name: "container_fs_write_seconds_total", kind: counter,
		help: "Cumulative count of seconds spent writing",
		write: disks(serviceTime, "Write", seconds, func(f *model.FsStats) float64 {
			return seconds(f.WriteTime)
		}),
	},
	{
		name: "container_fs_writes_bytes_total", kind: counter,
		help:  "Cumulative count of bytes written",
		write: disks(serviceBytes, "Write", plain, nil),
	},
	{
		name: "container_fs_writes_merged_total", kind: counter,
		help: "Cumulative count of writes merged",
		write: disks(merged, "Write", plain, func(f *model.FsStats) float64 {
			return float64(f.WritesMerged)
		}),
	},
	{
		name: "container_fs_writes_total", kind: counter,
		help: "Cumulative count of writes completed",
		write: disks(serviced, "Write", plain, func(f *model.FsStats) float64 {
			return float64(f.WritesCompleted)
		}),
	},
	{
		name: "container_health_state", kind: gauge,
		help:  "The result of the container's health check",
		write: one(func(*model.ContainerStats) float64 { return noHealthCheck }),
	},
	{
		name: "container_last_seen", kind: gauge,
		help:  "Last time a container was seen by the exporter",
		write: writeLastSeen,
	},
	{
		name: "container_memory_cache", kind: gauge,
		help:  "Number of bytes of page cache memory.",
		write: one(func(s *model.ContainerStats) float64 { return float64(s.Memory.Cache) }),
	},
	{
		name: "container_memory_events_high_total", kind: counter,
		help:  "Cumulative count of memory.high throttle events for the container",
		write: one(func(s *model.ContainerStats) float64 { return float64(s.Memory.Events.High) }),
	},
	{
		name: "container_memory_events_max_total", kind: counter,
		help:  "Cumulative count of memory.max limit hit events for the container",
		write: one(func(s *model.ContainerStats) float64 { return float64(s.Memory.Events.Max) }),
	},
	{
		name: "container_memory_failcnt", kind: counter,
		help:  "Number of memory usage hits limits",
		write: one(func(s *model.ContainerStats) float64 { return float64(s.Memory.Failcnt) }),
	},
	{
		name: "container_memory_failures_total", kind: counter,
		help:  "Cumulative count of memory allocation failures.",
		write: writeFailures,
	},
	{
		name: "container_memory_file_dirty_bytes", kind: gauge,
		help:  "Number of bytes of file cache that has been modified but not yet written back to disk.",
		write: one(func(s *model.ContainerStats) float64 { return float64(s.Memory.FileDirty) }),
	},
	{
		name: "container_memory_file_writeback_bytes", kind: gauge,
		help:  "Number of bytes of file cache that is currently being written back to disk.",
		write: one(func(s *model.ContainerStats) float64 { return float64(s.Memory.FileWriteback) }),
	},
	{
		name: "container_memory_kernel_usage", kind: gauge,
		help:  "Size of kernel memory allocated in bytes.",
		write: one(func(s *model.ContainerStats) float64 { return float64(s.Memory.KernelUsage) }),
	},
	{
		name: "container_memory_mapped_file", kind: gauge,
		help:  "Size of memory mapped files in bytes.",
		write: one(func(s *model.ContainerStats) float64 { return float64(s.Memory.MappedFile) }),
	},
	{
		name: "container_memory_max_usage_bytes", kind: gauge,
		help:  "Maximum memory usage recorded in bytes",
		write: one(func(s *model.ContainerStats) float64 { return float64(s.Memory.MaxUsage) }),
	},
	{
		name: "container_memory_pgscan_total", kind: counter,
		help:  "Cumulative number of pages scanned by the page reclaim algorithm.",
		write: one(func(s *model.ContainerStats) float64 { return float64(s.Memory.Pgscan) }),
	},
	{
		name: "container_memory_pgsteal_total", kind: counter,
		help:  "Cumulative number of pages reclaimed by the page reclaim algorithm.",
		write: one(func(s *model.ContainerStats) float64 { return float64(s.Memory.Pgsteal) }),
	},
	{
		name: "container_memory_rss", kind: gauge,
		help:  "Size of RSS in bytes.",
		write: one(func(s *model.ContainerStats) float64 { return float64(s.Memory.RSS) }),
	},
	{
		name: "container_memory_swap", kind: gauge,
		help:  "Container swap usage in bytes.",
		write: one(func(s *model.ContainerStats) float64 { return float64(s.Memory.Swap) }),
	},
	{
		name: "container_memory_total_active_file_bytes", kind: gauge,
		help:  "Current total active file in bytes.",
		write: one(func(s *model.ContainerStats) float64 { return float64(s.Memory.TotalActiveFile) }),
	},
	{
		name: "container_memory_total_inactive_file_bytes", kind: gauge,
		help:  "Current total inactive file in bytes.",
		write: one(func(s *model.ContainerStats) float64 { return float64(s.Memory.TotalInactiveFile) }),
	},
	{
		name: "container_memory_usage_bytes", kind: gauge,
		help:  "Current memory usage in bytes, including all memory regardless of when it was accessed",
		write: one(func(s *model.ContainerStats) float64 { return float64(s.Memory.Usage) }),
	},
	{
		name: "container_memory_working_set_bytes", kind: gauge,
		help:  "Current working set in bytes.",
		write: one(func(s *model.ContainerStats) float64 { return float64(s.Memory.WorkingSet) }),
	},
	{
		name: "container_memory_workingset_refault_anon_total", kind: counter,
		help:  "Cumulative number of refaults of previously evicted anonymous pages.",
		write: one(func(s *model.ContainerStats) float64 { return float64(s.Memory.WorkingsetRefaultAnon) }),
	},
	{
		name: "container_memory_workingset_refault_file_total", kind: counter,
		help:  "Cumulative number of refaults of previously evicted file pages.",
		write: one(func(s *model.ContainerStats) float64 { return float64(s.Memory.WorkingsetRefaultFile) }),
	},
	{
		name: "container_network_receive_bytes_total", kind: counter,
		help:  "Cumulative count of bytes received",
		write: interfaces(func(n *model.InterfaceStats) uint64 { return n.RxBytes }),
	},
	{
		name: "container_network_receive_errors_total", kind: counter,
		help:  "Cumulative count of errors encountered while receiving",
		write: interfaces(func(n *model.InterfaceStats) uint64 { return n.RxErrors }),
	},
	{
		name: "container_network_receive_packets_dropped_total", kind: counter,
		help:  "Cumulative count of packets dropped while receiving",
		write: interfaces(func(n *model.InterfaceStats) uint64 { return n.RxDropped }),
	},
	{
		name: "container_network_receive_packets_total", kind: counter,
		help:  "Cumulative count of packets received",
		write: interfaces(func(n *model.InterfaceStats) uint64 { return n.RxPackets }),
	},
	{
		name: "container_network_transmit_bytes_total", kind: counter,
		help:  "Cumulative count of bytes transmitted",
		write: interfaces(func(n *model.InterfaceStats) uint64 { return n.TxBytes }),
	},
	{
		name: "container_network_transmit_errors_total", kind: counter,
		help:  "Cumulative count of errors encountered while transmitting",
		write: interfaces(func(n *model.InterfaceStats) uint64 { return n.TxErrors }),
	},
	{
		name: "container_network_transmit_packets_dropped_total", kind: counter,
		help:  "Cumulative count of packets dropped while transmitting",
		write: interfaces(func(n *model.InterfaceStats) uint64 { return n.TxDropped }),
	},
	{
		name: "container_network_transmit_packets_total", kind: counter,
		help:  "Cumulative count of packets transmitted",
		write: interfaces(func(n *model.InterfaceStats) uint64 { return n.TxPackets }),
	},
	{
		name: "container_oom_events_total", kind: counter,
		help:  "Count of out of memory events observed for the container",
		write: one(func(s *model.ContainerStats) float64 { return float64(s.OOMEvents) }),
	},
	{
		name: "container_pressure_cpu_stalled_seconds_total", kind: counter,
		help:     "Total time duration no tasks in the container could make progress due to CPU congestion.",
		write:    one(func(s *model.ContainerStats) float64 { return micro(s.Cpu.PSI.Full.Total) }),
		pressure: true,
	},
	{
		name: "container_pressure_cpu_waiting_seconds_total", kind: counter,
		help:     "Total time duration tasks in the container have waited due to CPU congestion.",
		write:    one(func(s *model.ContainerStats) float64 { return micro(s.Cpu.PSI.Some.Total) }),
		pressure: true,
	},
	{
		name: "container_pressure_io_stalled_seconds_total", kind: counter,
		help:     "Total time duration no tasks in the container could make progress due to IO congestion.",
		write:    one(func(s *model.ContainerStats) float64 { return micro(s.DiskIo.PSI.Full.Total) }),
		pressure: true,
	},
	{
		name: "container_pressure_io_waiting_seconds_total", kind: counter,
		help:     "Total time duration tasks in the container have waited due to IO congestion.",
		write:    one(func(s *model.ContainerStats) float64 { return micro(s.DiskIo.PSI.Some.Total) }),
		pressure: true,
	},
	{
		name: "container_pressure_memory_stalled_seconds_total", kind: counter,
		help:     "Total time duration no tasks in the container could make progress due to memory congestion.",
		write:    one(func(s *model.ContainerStats) float64 { return micro(s.Memory.PSI.Full.Total) }),
		pressure: true,
	},
	{
		name: "container_pressure_memory_waiting_seconds_total", kind: counter,
		help:     "Total time duration tasks in the container have waited due to memory congestion.",
		write:    one(func(s *model.ContainerStats) float64 { return micro(s.Memory.PSI.Some.Total) }),
		pressure: true,
	},
	{
		name: "container_processes", kind: gauge,
		help:  "Number of processes running inside the container.",
		write: one(func(s *model.ContainerStats) float64 { return float64(s.Processes.ProcessCount) }),
	},
	{
		name: "container_spec_cpu_period", kind: gauge,
		help:    "CPU period of the container.",
		write:   spec(func(c *subject) float64 { return float64(c.Spec.Cpu.Period) }),
		untimed: true,
		when:    hasCPU,
	},
	{
		name: "container_spec_cpu_quota", kind: gauge,
		help:    "CPU quota of the container.",
		write:   spec(func(c *subject) float64 { return float64(c.Spec.Cpu.Quota) }),
		untimed: true,
		when:    hasQuota,
	},
	{
		name: "container_spec_cpu_shares", kind: gauge,
		help:    "CPU share of the container.",
		write:   spec(func(c *subject) float64 { return float64(c.Spec.Cpu.Limit) }),
		untimed: true,
		when:    hasCPU,
	},
	{
		name: "container_spec_memory_limit_bytes", kind: gauge,
		help:    "Memory limit for the container.",
		write:   spec(func(c *subject) float64 { return limit(c.Spec.Memory.Limit) }),
		untimed: true,
		when:    hasMemory,
	},
	{
		name: "container_spec_memory_reservation_limit_bytes", kind: gauge,
		help:    "Memory reservation limit for the container.",
		write:   spec(func(c *subject) float64 { return limit(c.Spec.Memory.Reservation) }),
		untimed: true,
		when:    hasMemory,
	},
	{
		name: "container_spec_memory_swap_limit_bytes", kind: gauge,
		help:    "Memory swap limit for the container.",
		write:   spec(func(c *subject) float64 { return limit(c.Spec.Memory.SwapLimit) }),
		untimed: true,
		when:    hasMemory,
	},
	{
		name: "container_start_time_seconds", kind: gauge,
		help:    "Start time of the container since unix epoch in seconds.",
		write:   spec(func(c *subject) float64 { return float64(c.Spec.CreationTime.Unix()) }),
		untimed: true,
	},
	{
		name: "container_threads", kind: gauge,
		help:  "Number of threads running inside the container",
		write: one(func(s *model.ContainerStats) float64 { return float64(s.Processes.ThreadsCurrent) }),
	},
	{
		name: "container_threads_max", kind: gauge,
		help:  "Maximum number of threads allowed inside the container, infinity if value is zero",
		write: one(func(s *model.ContainerStats) float64 { return float64(s.Processes.ThreadsMax) }),
	},
	{
		name: "container_ulimits_soft", kind: gauge,
		help:  "Soft ulimit values for the container root process. Unlimited if -1, except priority and nice",
		write: writeLimits,
	},
}
