package cgroups

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/microlet/microlet/services/internal/podcgroup"
	"github.com/microlet/microlet/services/internal/podutil"
	"github.com/microlet/microlet/services/podsync/internal/pod"
)

// unlimitedFrom is the least that the kernel shows for a memory limit of cgroup v1 that does not exist: the largest
// number of whole pages, whatever their size.
const unlimitedFrom = pod.Unlimited >> 20 << 20

// ReadPod reads the cgroup of a pod and what its containers of these IDs use. It is nil for a pod that has none.
func (m *Manager) ReadPod(p *v1.Pod, containers []string) (*pod.Cgroup, error) {
	if !m.o.PerQOS {
		return nil, nil
	}
	if err := validUID(p.UID); err != nil {
		return nil, err
	}
	n := m.podName(p)
	if ok, err := m.exists(n); err != nil || !ok {
		return nil, err
	}
	c, err := m.readPod(n, p)
	if err == nil {
		c.Memory, c.Containers, err = m.usage(n, containers)
	}
	if err != nil {
		return nil, fmt.Errorf("read the cgroup of pod %s/%s: %w", p.Namespace, p.Name, err)
	}
	return c, nil
}

// SetPod changes the limits of a pod's cgroup from before to after. What is the same in both stays as it is. A memory
// limit below what the pod uses is refused.
func (m *Manager) SetPod(p *v1.Pod, before, after pod.CgroupLimits) error {
	r := resources{checked: true, unified: map[string]string{}}
	if before.CPUQuota != after.CPUQuota || before.CPUPeriod != after.CPUPeriod {
		r.quota, r.period = ptr.To(orRemoved(after.CPUQuota)), ptr.To(uint64(after.CPUPeriod))
	}
	if before.CPUShares != after.CPUShares {
		r.shares = &after.CPUShares
	}
	if before.MemoryLimit != after.MemoryLimit {
		r.memory = ptr.To(orRemoved(after.MemoryLimit))
	}
	if before.MemoryHigh != after.MemoryHigh {
		r.unified["memory.high"] = "max"
		if after.MemoryHigh != pod.Unlimited {
			r.unified["memory.high"] = strconv.FormatInt(after.MemoryHigh, 10)
		}
	}
	if before.MemoryProtected != after.MemoryProtected {
		r.unified[ProtectedFile(p)] = strconv.FormatInt(after.MemoryProtected, 10)
	}
	if err := m.writePod(m.podName(p), r); err != nil {
		return fmt.Errorf("set the limits of the cgroup of pod %s/%s: %w", p.Namespace, p.Name, err)
	}
	return nil
}

// orRemoved is what removes a limit that does not exist.
func orRemoved(limit int64) int64 {
	if limit == pod.Unlimited {
		return -1
	}
	return limit
}

// ProtectedFile is the file of cgroup v2 that protects the memory that a pod requests.
func ProtectedFile(p *v1.Pod) string {
	if podutil.QOSClass(p) == v1.PodQOSGuaranteed {
		return "memory.min"
	}
	return "memory.low"
}

// wantedLimits are those that the resources of the pod make.
func (m *Manager) wantedLimits(p *v1.Pod) pod.CgroupLimits {
	r := m.podResources(p)
	limit := func(of *int64) int64 {
		if of == nil || *of <= 0 {
			return pod.Unlimited
		}
		return *of
	}
	amount := func(file string, otherwise int64) int64 {
		if n, err := strconv.ParseInt(r.unified[file], 10, 64); err == nil && m.unified {
			return n
		}
		return otherwise
	}
	return pod.CgroupLimits{
		MemoryLimit: limit(r.memory), MemoryHigh: amount("memory.high", pod.Unlimited),
		MemoryProtected: amount(ProtectedFile(p), 0),
		CPUQuota:        limit(r.quota), CPUPeriod: m.periodMicros(), CPUShares: *r.shares,
	}
}

func (m *Manager) readPod(n podcgroup.Name, p *v1.Pod) (*pod.Cgroup, error) {
	c := &pod.Cgroup{Wants: m.wantedLimits(p)}
	c.Has = c.Wants // as to what this host cannot limit
	path, err := m.path(n)
	if err != nil {
		return nil, err
	}
	files := reader{m.mounts, path, nil}
	if m.unified {
		m.readUnified(&files, p, c)
	} else {
		c.Has.MemoryLimit = files.number("memory", "memory.limit_in_bytes")
		c.Has.CPUQuota = files.number("cpu", "cpu.cfs_quota_us")
		c.Has.CPUPeriod = files.number("cpu", "cpu.cfs_period_us")
		c.Has.CPUShares = uint64(files.number("cpu", "cpu.shares"))
	}
	if files.err != nil {
		return nil, files.err
	}
	m.smooth(c)
	return c, nil
}

func (m *Manager) readUnified(files *reader, p *v1.Pod, c *pod.Cgroup) {
	if m.has("memory") {
		c.Has.MemoryLimit = files.number("", "memory.max")
		if m.o.MemoryThrottlingFactor != nil {
			c.Has.MemoryHigh = files.number("", "memory.high")
		}
		if m.o.MemoryReservation {
			c.Has.MemoryProtected = files.number("", ProtectedFile(p))
		}
	}
	if m.has("cpu") {
		quota, period, _ := strings.Cut(files.text("", "cpu.max"), " ")
		c.Has.CPUQuota, c.Has.CPUPeriod = files.parse("cpu.max", quota), files.parse("cpu.max", period)
		weight := uint64(files.number("", "cpu.weight"))
		if weight != sharesToWeight(c.Wants.CPUShares) {
			c.Has.CPUShares = weightToShares(weight)
		}
	}
}

// weightToShares is the inverse of sharesToWeight, as far as there is one.
func weightToShares(weight uint64) uint64 {
	return MinShares + (max(weight, 1)-1)*262142/9999
}

// smooth takes as equal what the kernel and the driver round to the same.
func (m *Manager) smooth(c *pod.Cgroup) {
	page := int64(os.Getpagesize())
	switch has, wants := c.Has.MemoryLimit, c.Wants.MemoryLimit; {
	case has/page == wants/page, min(has, wants) >= unlimitedFrom: // so large a limit is none to the kernel
		c.Has.MemoryLimit = wants
	case has >= unlimitedFrom:
		c.Has.MemoryLimit = pod.Unlimited
	}
	if c.Has.MemoryProtected == c.Wants.MemoryProtected/page*page {
		c.Has.MemoryProtected = c.Wants.MemoryProtected
	}
	if c.Has.CPUQuota <= 0 || c.Has.CPUQuota == pod.Unlimited {
		c.Has.CPUQuota, c.Has.CPUPeriod = pod.Unlimited, c.Wants.CPUPeriod
		return
	}
	if c.Has.CPUPeriod > 0 {
		c.Has.CPUQuota = c.Has.CPUQuota * c.Wants.CPUPeriod / c.Has.CPUPeriod
	}
	c.Has.CPUPeriod = c.Wants.CPUPeriod
	wants := c.Wants.CPUQuota
	if m.systemd && wants != pod.Unlimited {
		const step = 10000 // systemd has whole percents of a CPU, in microseconds a second
		aSecond := (wants*1000000/c.Wants.CPUPeriod + step - 1) / step * step
		wants = aSecond * c.Wants.CPUPeriod / 1000000
	}
	if difference := c.Has.CPUQuota - wants; -1 <= difference && difference <= 1 {
		c.Has.CPUQuota = c.Wants.CPUQuota
	}
}

// usage is the memory that a pod and its containers use, in bytes.
func (m *Manager) usage(n podcgroup.Name, containers []string) (all int64, each map[string]int64, err error) {
	if m.unified && !m.has("memory") {
		return 0, nil, nil
	}
	if all, err = m.memoryUsage(n); err != nil {
		return 0, nil, err
	}
	path, err := m.path(n)
	if err != nil {
		return 0, nil, err
	}
	mount := m.mounts["memory"]
	if m.unified {
		mount = m.mounts[""]
	}
	entries, err := os.ReadDir(filepath.Join(mount, path))
	if err != nil {
		return 0, nil, fmt.Errorf("list the cgroups of containers: %w", err)
	}
	each = map[string]int64{}
	for _, id := range containers {
		for _, e := range entries {
			if !e.IsDir() || !isOf(e.Name(), id) {
				continue
			}
			// One that has ended meanwhile uses nothing that is its own.
			if used, err := m.memoryUsageAt(filepath.Join(path, e.Name())); err == nil {
				each[id] = used
			} else if !errors.Is(err, os.ErrNotExist) {
				return 0, nil, err
			}
		}
	}
	return all, each, nil
}

// isOf reports whether a folder is the cgroup of a container: "<id>" with the driver cgroupfs, and
// "cri-containerd-<id>.scope" or "crio-<id>.scope" with systemd's. CRI-O's monitor has one of its own.
func isOf(folder, id string) bool {
	name := strings.TrimSuffix(folder, ".scope")
	return (name == id || strings.HasSuffix(name, "-"+id)) && !strings.Contains(name, "conmon")
}

// reader reads files of one cgroup. It keeps the first error.
type reader struct {
	mounts map[string]string
	path   string
	err    error
}

func (r *reader) text(controller, file string) string {
	text, err := os.ReadFile(filepath.Join(r.mounts[controller], r.path, file))
	if err != nil && r.err == nil {
		r.err = err
	}
	return strings.TrimSpace(string(text))
}

func (r *reader) number(controller, file string) int64 {
	return r.parse(file, r.text(controller, file))
}

// parse reads a number, or "max".
func (r *reader) parse(file, text string) int64 {
	if r.err != nil {
		return 0
	}
	if text == "max" {
		return pod.Unlimited
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		r.err = fmt.Errorf("%s: %w", file, err)
	}
	return n
}
