package cgroupstats

import (
	"context"
	"fmt"
	"time"

	"github.com/google/cadvisor/lib/fs"
	"github.com/google/cadvisor/lib/machine"
	"github.com/google/cadvisor/lib/model"
	"github.com/google/cadvisor/lib/utils/sysfs"

	"github.com/microlet/microlet/services/internal/fsusage"
	"github.com/microlet/microlet/services/stats/internal/filesystem"
)

// machinePeriod is how old what is known of the machine may be. cAdvisor's is the same.
const machinePeriod = 5 * time.Minute

// readMachine reads what the machine is made of.
func readMachine(mounted []mounted) (*model.MachineInfo, error) {
	info, err := machine.Info(sysfs.NewRealSysFs(), ownFilesystems{mounted: mounted}, true)
	if err != nil {
		return nil, fmt.Errorf("read what the machine is made of: %w", err)
	}
	return info, nil
}

// mounted is a file system of the node and what it has.
type mounted struct {
	filesystem.Partition
	fsusage.Usage
}

// ownFilesystems gives the library the file systems that were asked here: its own reader waits for each of them.
type ownFilesystems struct {
	fs.FsInfo // of which only the next is called

	mounted []mounted
}

// GetGlobalFsInfo implements fs.FsInfo.
func (o ownFilesystems) GetGlobalFsInfo() ([]fs.Fs, error) {
	all := make([]fs.Fs, 0, len(o.mounted))
	for _, m := range o.mounted {
		all = append(all, fs.Fs{
			DeviceInfo: fs.DeviceInfo{Device: m.Device, Major: uint(m.Major), Minor: uint(m.Minor)},
			Type:       fs.VFS, Capacity: m.Capacity, Free: m.Free, Available: m.Available,
			Inodes: &m.Inodes, InodesFree: &m.InodesFree,
		})
	}
	return all, nil
}

// filesystems asks the node's own file systems. One that does not answer is left out.
func (m *Measurer) filesystems(ctx context.Context) []mounted {
	parts, err := filesystem.Partitions(m.o.Except...)
	if err != nil {
		m.book.Add(filesystemSource, "mounts", err)
		return nil
	}
	var all []mounted
	for _, p := range parts {
		usage, err := m.prober.Usage(ctx, p.Mountpoint)
		if err != nil {
			m.book.Add(filesystemSource, p.Mountpoint, err)
			continue
		}
		all = append(all, mounted{p, usage})
	}
	return all
}

// fsStats are the figures of the node's file systems as cAdvisor has them.
func (m *Measurer) fsStats(mounted []mounted) []model.FsStats {
	disks, err := filesystem.Disks()
	if err != nil {
		m.book.Add(filesystemSource, "disks", err)
	}
	all := make([]model.FsStats, 0, len(mounted))
	for _, f := range mounted {
		s := model.FsStats{
			Device: f.Device, Type: string(fs.VFS), Limit: f.Capacity, Usage: f.Capacity - min(f.Free, f.Capacity),
			Available: f.Available, HasInodes: true, Inodes: f.Inodes, InodesFree: f.InodesFree,
		}
		if t, ok := traffic(disks, f.Partition); ok {
			s.ReadsCompleted, s.ReadsMerged, s.SectorsRead, s.ReadTime =
				t.ReadsCompleted, t.ReadsMerged, t.SectorsRead, t.ReadTime
			s.WritesCompleted, s.WritesMerged, s.SectorsWritten, s.WriteTime =
				t.WritesCompleted, t.WritesMerged, t.SectorsWritten, t.WriteTime
			s.IoInProgress, s.IoTime, s.WeightedIoTime = t.IOInProgress, t.IOTime, t.WeightedIOTime
		}
		all = append(all, s)
	}
	return all
}

// traffic is that of a partition's disk, by its name or else by its number.
func traffic(disks map[string]filesystem.Traffic, p filesystem.Partition) (filesystem.Traffic, bool) {
	if t, ok := disks[p.Device]; ok {
		return t, true
	}
	for _, t := range disks {
		if t.Major == p.Major && t.Minor == p.Minor {
			return t, true
		}
	}
	return filesystem.Traffic{}, false
}
