package exposition

import (
	"slices"
	"strconv"

	"github.com/google/cadvisor/lib/model"

	"github.com/microlet/microlet/services/stats/internal/cgroupstats"
)

// noHealthCheck is the health of what has no check of the runtime's own, as no container of a pod has.
const noHealthCheck = -1

func hasCPU(s *model.ContainerSpec) bool { return s.HasCpu }

func hasQuota(s *model.ContainerSpec) bool { return s.Cpu.Quota != 0 }

func hasMemory(s *model.ContainerSpec) bool { return s.HasMemory }

// limit is one of memory; none is 0.
func limit(bytes uint64) float64 {
	if cgroupstats.Unlimited(bytes) {
		return 0
	}
	return plain(bytes)
}

func plain(v uint64) float64 { return float64(v) }

// micro are so many microseconds, as seconds.
func micro(v uint64) float64 { return float64(v) / 1e6 }

// one writes the one metric of each cgroup.
func one(value func(*model.ContainerStats) float64) func(*series, *model.ContainerStats) {
	return func(s *series, stats *model.ContainerStats) { s.put(value(stats)) }
}

// spec writes what is known of the cgroup itself.
func spec(value func(*subject) float64) func(*series, *model.ContainerStats) {
	return func(s *series, _ *model.ContainerStats) { s.put(value(s.subject)) }
}

// filesystems writes a metric for each file system.
func filesystems(value func(*model.FsStats) float64) func(*series, *model.ContainerStats) {
	return func(s *series, stats *model.ContainerStats) {
		for i := range stats.Filesystem {
			f := &stats.Filesystem[i]
			s.with(label("device", f.Device), value(f))
		}
	}
}

// disks writes a metric for each device that the cgroup's controller counts, and for each file system if there is a
// value for it.
func disks(of func(*model.DiskIoStats) []model.PerDiskStats, operation string, scale func(uint64) float64,
	value func(*model.FsStats) float64,
) func(*series, *model.ContainerStats) {
	return func(s *series, stats *model.ContainerStats) {
		if stats.DiskIo == nil {
			return
		}
		for _, d := range of(stats.DiskIo) {
			s.with(label("device", d.Device), scale(d.Stats[operation]))
		}
		if value != nil {
			filesystems(value)(s, stats)
		}
	}
}

// What the controller counts for each device.
func serviceBytes(d *model.DiskIoStats) []model.PerDiskStats { return d.IoServiceBytes }

func serviced(d *model.DiskIoStats) []model.PerDiskStats { return d.IoServiced }

func sectors(d *model.DiskIoStats) []model.PerDiskStats { return d.Sectors }

func merged(d *model.DiskIoStats) []model.PerDiskStats { return d.IoMerged }

func serviceTime(d *model.DiskIoStats) []model.PerDiskStats { return d.IoServiceTime }

func queued(d *model.DiskIoStats) []model.PerDiskStats { return d.IoQueued }

func costUsage(d *model.DiskIoStats) []model.PerDiskStats { return d.IoCostUsage }

func costWait(d *model.DiskIoStats) []model.PerDiskStats { return d.IoCostWait }

func costIndebt(d *model.DiskIoStats) []model.PerDiskStats { return d.IoCostIndebt }

func costIndelay(d *model.DiskIoStats) []model.PerDiskStats { return d.IoCostIndelay }

// interfaces writes a metric for each network interface.
func interfaces(value func(*model.InterfaceStats) uint64) func(*series, *model.ContainerStats) {
	return func(s *series, stats *model.ContainerStats) {
		if stats.Network == nil {
			return
		}
		for i := range stats.Network.Interfaces {
			n := &stats.Network.Interfaces[i]
			s.with(label("interface", n.Name), plain(value(n)))
		}
	}
}

func writeCPU(s *series, stats *model.ContainerStats) {
	if total := stats.Cpu.Usage.Total; total > 0 {
		s.with(label("cpu", "total"), seconds(total))
	}
}

func writeFailures(s *series, stats *model.ContainerStats) {
	for _, scope := range []struct {
		name string
		data *model.MemoryStatsMemoryData
	}{{"container", &stats.Memory.ContainerData}, {"hierarchy", &stats.Memory.HierarchicalData}} {
		s.with(label("failure_type", "pgfault")+","+label("scope", scope.name), plain(scope.data.Pgfault))
		s.with(label("failure_type", "pgmajfault")+","+label("scope", scope.name), plain(scope.data.Pgmajfault))
	}
}

func writeDevices(s *series, stats *model.ContainerStats) {
	if stats.DiskIo == nil {
		return
	}
	for _, d := range stats.DiskIo.IoServiceBytes {
		operations := make([]string, 0, len(d.Stats))
		for operation := range d.Stats {
			operations = append(operations, operation)
		}
		slices.Sort(operations)
		device := label("device", d.Device) + "," + label("major", strconv.FormatUint(d.Major, 10)) + "," +
			label("minor", strconv.FormatUint(d.Minor, 10)) + ","
		for _, operation := range operations {
			s.with(device+label("operation", operation), plain(d.Stats[operation]))
		}
	}
}

func writeLimits(s *series, stats *model.ContainerStats) {
	for _, l := range stats.Processes.Ulimits {
		s.with(label("ulimit", l.Name), float64(l.SoftLimit))
	}
}

func writeLastSeen(s *series, _ *model.ContainerStats) {
	s.at = s.now
	s.put(float64(s.now.Unix()))
}
