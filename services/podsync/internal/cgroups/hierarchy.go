package cgroups

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	libcgroups "github.com/opencontainers/cgroups"
	"golang.org/x/sys/unix"

	"github.com/microlet/microlet/services/internal/pause"
	"github.com/microlet/microlet/services/internal/podcgroup"
)

const (
	// removeRetry is how long to wait for killed processes to leave a cgroup before looking again.
	removeRetry = 10 * time.Millisecond
	// removeLimit ends a removal that processes in uninterruptible sleep would hold for ever.
	removeLimit = 10 * time.Second
)

// apply makes a cgroup, or sets an existing one.
func (m *Manager) apply(n podcgroup.Name, r resources) error {
	ok, err := m.exists(n)
	if err != nil {
		return err
	}
	if ok {
		return m.set(n, r)
	}
	return m.create(n, r)
}

// ensure makes a cgroup, and leaves an existing one as it is.
func (m *Manager) ensure(n podcgroup.Name, r resources) error {
	if ok, err := m.exists(n); ok || err != nil {
		return err
	}
	return m.create(n, r)
}

func (m *Manager) create(n podcgroup.Name, r resources) error {
	lib := m.convert(r)
	made, err := m.manager(n, lib)
	if err != nil {
		return err
	}
	// A pid of -1 makes the folders and moves no process into them.
	if err := made.Apply(-1); err != nil {
		return fmt.Errorf("create cgroup %s: %w", n.Cgroupfs(), err)
	}
	if err := made.Set(lib); err != nil {
		return fmt.Errorf("set the limits of cgroup %s: %w", n.Cgroupfs(), err)
	}
	return nil
}

func (m *Manager) set(n podcgroup.Name, r resources) error {
	if err := m.write(n, r); err != nil {
		return fmt.Errorf("set the limits of cgroup %s: %w", n.Cgroupfs(), err)
	}
	return nil
}

func (m *Manager) write(n podcgroup.Name, r resources) error {
	lib := m.convert(r)
	made, err := m.manager(n, lib)
	if err != nil {
		return err
	}
	return made.Set(lib)
}

// convert puts resources into the library's form. What the host has no controller for
// is left out, as the host cannot limit it.
func (m *Manager) convert(r resources) *libcgroups.Resources {
	// Devices and the freezer belong to containers: a pod's cgroup never touches them.
	lib := &libcgroups.Resources{SkipDevices: true, SkipFreezeOnSet: true, MemoryCheckBeforeUpdate: r.checked}
	if r.memory != nil && m.has("memory") {
		lib.Memory = *r.memory
	}
	if r.shares != nil && m.has("cpu") {
		if m.unified {
			lib.CpuWeight = sharesToWeight(*r.shares)
		} else {
			lib.CpuShares = *r.shares
		}
	}
	if r.quota != nil && m.has("cpu") {
		lib.CpuQuota = *r.quota
	}
	if r.period != nil && m.has("cpu") {
		lib.CpuPeriod = *r.period
	}
	if m.has("pids") {
		lib.PidsLimit = r.pids
	}
	if r.hugePages != nil && slices.Contains(m.needed, "hugetlb") {
		for _, page := range libcgroups.HugePageSizes() {
			lib.HugetlbLimit = append(lib.HugetlbLimit,
				&libcgroups.HugepageLimit{Pagesize: page, Limit: uint64(max(r.hugePages[page], 0))})
		}
	}
	if m.unified {
		if len(r.unified) > 0 && m.has("memory") {
			lib.Unified = r.unified
		}
	}
	if r.allCPUs && slices.Contains(m.needed, "cpuset") {
		lib.CpusetCpus = m.effectiveCPUs()
	}
	return lib
}

// has reports whether this host can limit what a controller counts. New makes sure of it with cgroup v1.
func (m *Manager) has(controller string) bool {
	return !m.unified || slices.Contains(m.needed, controller)
}

// effectiveCPUs are the CPUs that the hierarchy may use, "" when unknown.
func (m *Manager) effectiveCPUs() string {
	of := unifiedMount + "/cpuset.cpus.effective"
	if !m.unified {
		of = filepath.Join(m.mounts["cpuset"], "cpuset.effective_cpus")
	}
	for _, file := range []string{of, "/sys/devices/system/cpu/online"} {
		if text, err := os.ReadFile(file); err == nil {
			if cpus := strings.TrimSpace(string(text)); cpus != "" {
				return cpus
			}
		}
	}
	return ""
}

// exists reports whether the cgroup is there with every controller that it needs.
func (m *Manager) exists(n podcgroup.Name) (bool, error) {
	path, err := m.path(n)
	if err != nil {
		return false, err
	}
	missing, err := m.missing(path)
	return err == nil && len(missing) == 0, err
}

// missing lists the needed controllers that a cgroup does not have: all of them, if it is not there.
func (m *Manager) missing(path string) ([]string, error) {
	var missing []string
	if !m.unified {
		for _, c := range m.needed {
			if !libcgroups.PathExists(filepath.Join(m.mounts[c], path)) {
				missing = append(missing, c)
			}
		}
		return missing, nil
	}
	have, err := unifiedControllers(filepath.Join(unifiedMount, path))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("read the controllers of cgroup %s: %w", path, err)
	}
	for _, c := range m.needed {
		if err != nil || !slices.Contains(have, c) {
			missing = append(missing, c)
		}
	}
	return missing, nil
}

func unifiedControllers(dir string) ([]string, error) {
	text, err := os.ReadFile(filepath.Join(dir, "cgroup.controllers"))
	if err != nil {
		return nil, err
	}
	return strings.Fields(string(text)), nil
}

// remove kills the processes below a cgroup and removes it from every hierarchy.
func (m *Manager) remove(ctx context.Context, n podcgroup.Name) error {
	path, err := m.path(n)
	if err != nil {
		return err
	}
	if !m.anywhere(path) {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, removeLimit)
	defer cancel()
	for {
		pids := m.pids(path)
		if len(pids) == 0 {
			break
		}
		m.log.Warn("killing processes left in a pod's cgroup", "cgroup", path, "pids", pids)
		if err := m.kill(path, pids); err != nil {
			return err
		}
		if err := pause.For(ctx, removeRetry); err != nil {
			return fmt.Errorf("processes %v of cgroup %s do not end after SIGKILL: %w", pids, path, err)
		}
	}
	made, err := m.manager(n, &libcgroups.Resources{})
	if err != nil {
		return err
	}
	if err := made.Destroy(); err != nil {
		return fmt.Errorf("remove cgroup %s: %w", path, err)
	}
	// What the library's manager does not know of (a hierarchy mounted twice, say) goes by hand.
	for _, mount := range m.mounts {
		if err := libcgroups.RemovePath(filepath.Join(mount, path)); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("remove cgroup %s: %w", path, err)
		}
	}
	return nil
}

// kill kills the processes of a cgroup. With cgroup v2 the kernel does it (5.14): it misses none that
// is forked meanwhile, and reaches those of a PID namespace that is not below ours. Such a process
// reads as 0, and a signal to 0 would be one to podsync's own process group.
func (m *Manager) kill(path string, pids []int) error {
	if m.unified && writeExisting(filepath.Join(m.mounts[""], path, "cgroup.kill"), "1") == nil {
		return nil
	}
	for _, pid := range pids {
		if pid <= 0 {
			continue
		}
		if err := unix.Kill(pid, unix.SIGKILL); err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("kill process %d of cgroup %s: %w", pid, path, err)
		}
	}
	if pids[0] <= 0 {
		return fmt.Errorf("cgroup %s has processes of another PID namespace, which only a kernel with cgroup.kill (5.14) "+
			"can end from here: "+
			"run microlet in the host's PID namespace", path)
	}
	return nil
}

func writeExisting(file, text string) error {
	f, err := os.OpenFile(file, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	return errors.Join(err, f.Close())
}

func (m *Manager) anywhere(path string) bool {
	for _, mount := range m.mounts {
		if libcgroups.PathExists(filepath.Join(mount, path)) {
			return true
		}
	}
	return false
}

// pids returns every process in or below a cgroup, of all hierarchies, sorted. One that cannot be
// seen from podsync's PID namespace is 0.
func (m *Manager) pids(path string) []int {
	var all []int
	for _, mount := range m.mounts {
		_ = filepath.WalkDir(filepath.Join(mount, path), func(dir string, d fs.DirEntry, err error) error {
			// A folder that vanishes meanwhile has no processes left to kill.
			if err != nil || !d.IsDir() {
				return nil
			}
			if some, err := libcgroups.GetPids(dir); err == nil {
				all = append(all, some...)
			}
			return nil
		})
	}
	slices.Sort(all)
	return slices.Compact(all)
}
