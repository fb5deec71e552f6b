// Package filesystem lists the node's file systems, with what its disks have read and written.
//
// Network file systems are left out, so that they are never asked: a process with a thread that hangs in one may not
// end even when it is killed.
package filesystem

import (
	"fmt"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/moby/sys/mountinfo"
)

// Partition is a mounted file system of the node itself.
type Partition struct {
	// Device as cAdvisor names it: the source of the mount, or the mount point of a tmpfs.
	Device       string
	Mountpoint   string
	Type         string
	Major, Minor int
}

// local are the file systems that are listed: those of the machine's own disks and memory that cAdvisor knows.
func local(fsType string) bool {
	switch fsType {
	case "xfs", "btrfs", "zfs", "tmpfs", "overlay", "squashfs", "f2fs", "jfs", "reiserfs", "hfs", "hfsplus", "ntfs",
		"vfat", "fat", "msdos", "exfat", "udf", "iso9660":
		return true
	}
	return strings.HasPrefix(fsType, "ext")
}

// maxPartitions bounds the partitions of a node that are reported.
const maxPartitions = 128

// Partitions returns the node's own file systems, each once, ordered by device. What pods mount, which is below the
// folders in except, is left out, and so are the root file systems of containers: they come and go with their pods.
func Partitions(except ...string) ([]Partition, error) {
	file, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	defer file.Close()
	mounts, err := mountinfo.GetMountsFromReader(file, nil)
	if err != nil {
		return nil, fmt.Errorf("read the mounts of the node: %w", err)
	}
	return partitions(mounts, except), nil
}

func partitions(mounts []*mountinfo.Info, except []string) []Partition {
	seen := map[string]bool{}
	var all []Partition
	for _, m := range mounts {
		p := Partition{Device: m.Source, Mountpoint: m.Mountpoint, Type: m.FSType, Major: m.Major, Minor: m.Minor}
		if m.Mountpoint != "/" {
			if !local(m.FSType) || m.FSType == "overlay" || inside(m.Mountpoint, except) {
				continue
			}
			if m.FSType == "tmpfs" {
				p.Device = m.Mountpoint // their sources are all alike
			}
		}
		if m.FSType == "overlay" {
			p.Device = fmt.Sprintf("%s_%d-%d", m.Source, m.Major, m.Minor)
		}
		if seen[p.Device] || len(all) == maxPartitions {
			continue
		}
		seen[p.Device] = true
		all = append(all, p)
	}
	slices.SortFunc(all, func(a, b Partition) int { return strings.Compare(a.Device, b.Device) })
	return all
}

func inside(at string, folders []string) bool {
	return slices.ContainsFunc(folders, func(folder string) bool {
		folder = path.Clean(folder)
		return at != folder && strings.HasPrefix(at, strings.TrimSuffix(folder, "/")+"/")
	})
}
