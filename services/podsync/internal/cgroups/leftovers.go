package cgroups

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	libcgroups "github.com/opencontainers/cgroups"
	"golang.org/x/sys/unix"

	"github.com/microlet/microlet/services/internal/podcgroup"
)

// writePod sets a pod's cgroup. With cgroup v1 the kernel refuses a quota below that of any cgroup in it, and a runtime
// that is killed while it starts a container leaves the container's cgroup behind. One without a process would be in
// the way until the pod ends.
func (m *Manager) writePod(n podcgroup.Name, r resources) error {
	err := m.write(n, r)
	if m.unified || r.quota == nil || !errors.Is(err, unix.EINVAL) {
		return err
	}
	if err := m.unlimitEmpty(n); err != nil {
		return fmt.Errorf("take the CPU quota from cgroups without processes: %w", err)
	}
	return m.write(n, r)
}

// unlimitEmpty takes the CPU quota from what is in a cgroup and has no process. The runtime sets the quota of a
// container when its process is there, so that none loses a quota that it needs.
func (m *Manager) unlimitEmpty(n podcgroup.Name) error {
	path, err := m.path(n)
	if err != nil {
		return err
	}
	dir := filepath.Join(m.mounts["cpu"], path)
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if !e.IsDir() {
			continue
		}
		if err := unlimitTree(filepath.Join(dir, e.Name())); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	return nil
}

// unlimitTree takes the CPU quota from a cgroup and those in it, unless there is a process in one of them.
func unlimitTree(dir string) error {
	pids, err := libcgroups.GetAllPids(dir)
	if err != nil || len(pids) > 0 {
		return err
	}
	return filepath.WalkDir(dir, func(path string, e os.DirEntry, err error) error {
		if err != nil || !e.IsDir() {
			return err
		}
		return libcgroups.WriteFile(path, "cpu.cfs_quota_us", "-1")
	})
}
