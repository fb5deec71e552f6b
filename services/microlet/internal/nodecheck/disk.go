package nodecheck

import (
	"fmt"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/microlet/microlet/services/internal/kubeletconfig"
)

// Shares of a file system in percent. The first are the kubelet's default thresholds of eviction, below which pods are
// evicted; below the second, images are about to be removed (imageGCHighThresholdPercent is 85).
const (
	evictsBelow  = 10
	inodesBelow  = 5
	removesBelow = 15
)

// disks checks the file systems that hold the folders of the agent.
func (h Host) disks(r *report, k *kubeletconfig.Config) {
	seen := map[unix.Fsid]bool{}
	for _, dir := range []string{k.Node.RootDir, k.Kubelet.PodLogsDir, h.RuntimeDir} {
		there, s, ok := statfs(dir)
		if !ok || seen[s.Fsid] || s.Blocks == 0 {
			continue
		}
		seen[s.Fsid] = true
		free := s.Bavail * 100 / s.Blocks
		inodes := uint64(100)
		if s.Files > 0 {
			inodes = s.Ffree * 100 / s.Files
		}
		where := there
		if there != dir {
			where += ", where " + dir + " is,"
		}
		detail := fmt.Sprintf("%s has %d%% of its space and %d%% of its inodes free", where, free, inodes)
		switch {
		case s.Flags&unix.ST_RDONLY != 0:
			r.failed("disk", where+" is mounted read-only", "mount it writable, or use another folder")
		case free < evictsBelow || inodes < inodesBelow:
			r.failed("disk", detail+": pods would be evicted", "make room, or use another disk")
		case free < removesBelow:
			r.warn("disk", detail+": unused images would be removed", "make room, or use another disk")
		default:
			r.add("disk", OK, detail, "")
		}
	}
}

// statfs looks at a folder or, if it is not there yet, at the nearest one above it.
func statfs(dir string) (there string, s unix.Statfs_t, ok bool) {
	for there = filepath.Clean(dir); ; there = filepath.Dir(there) {
		err := unix.Statfs(there, &s)
		if err == nil {
			return there, s, true
		}
		if there == "/" || there == "." {
			return there, s, false
		}
	}
}
