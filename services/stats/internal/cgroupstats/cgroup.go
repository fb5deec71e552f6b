package cgroupstats

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/google/cadvisor/lib/container"
	"github.com/google/cadvisor/lib/container/common"
	"github.com/google/cadvisor/lib/container/libcontainer"
	"github.com/google/cadvisor/lib/machine"
	"github.com/google/cadvisor/lib/model"
	libcgroups "github.com/opencontainers/cgroups"
)

const (
	// specPeriod is how old the limits of a cgroup may be; they change when a pod is resized in place.
	specPeriod = 30 * time.Second
	// unbelievable is more than any amount of bytes or nanoseconds that a node can count: what is above it is the
	// difference of two numbers that were read at two times, or is no number at all.
	unbelievable = 1 << 62
)

// included are the metrics that the library's reader gathers, of those that the kubelet's cAdvisor has. Processes are
// counted here, since the library reads each descriptor of each of them.
func included(network bool) container.MetricSet {
	set := container.MetricSet{
		container.CpuUsageMetrics:    {},
		container.MemoryUsageMetrics: {},
		container.DiskIOMetrics:      {},
	}
	if network {
		set[container.NetworkUsageMetrics] = struct{}{}
	}
	return set
}

// mounts returns where the controllers are mounted that the kubelet's cAdvisor reads, by controller; with cgroup v2
// there is one, of no name.
func mounts() (map[string]string, error) {
	set := included(true)
	set[container.ProcessMetrics] = struct{}{} // for the controller pids
	m, err := libcontainer.GetCgroupSubsystems(set)
	if err != nil {
		return nil, fmt.Errorf("find the cgroup hierarchies: %w", err)
	}
	if len(m) == 0 {
		return nil, errors.New("find the cgroup hierarchies: none is mounted")
	}
	return m, nil
}

// selective reads of a cgroup what is asked for, and keeps what the library's reader drops.
type selective struct {
	libcgroups.Manager

	pids libcgroups.PidsStats
}

// selected are the controllers with reported figures.
var selected = &libcgroups.StatsOptions{
	Controllers: libcgroups.CPU | libcgroups.Memory | libcgroups.IO | libcgroups.Pids,
}

// GetStats implements cgroups.Manager.
func (s *selective) GetStats() (*libcgroups.Stats, error) {
	stats, err := s.Stats(selected)
	if stats != nil {
		s.pids = stats.PidsStats
	}
	return stats, err
}

// tracked is a cgroup that is read again and again. Only one goroutine uses it.
type tracked struct {
	found

	paths   map[string]string
	manager *selective
	handler *libcontainer.Handler
	// pid is the process in the network that the handler reads; 0 reads none.
	pid int

	spec   model.ContainerSpec
	specAt time.Time
	limits []model.UlimitSpec

	// last is the sample before, of which the use of processors is the difference.
	lastTime  time.Time
	lastTotal uint64
	seen      bool
}

func track(f found, mounted map[string]string) (*tracked, error) {
	t := &tracked{found: f, paths: common.MakeCgroupPaths(mounted, f.name)}
	if f.kind == Root {
		delete(t.paths, "pids") // the root has no such files
	}
	manager, err := libcontainer.NewCgroupManager(f.name, t.paths)
	if err != nil {
		return nil, err
	}
	t.manager = &selective{Manager: manager}
	pid := 0
	if f.kind == Root {
		pid = 1
	}
	t.listen(pid)
	return t, nil
}

// listen makes the reader read the network of a process.
func (t *tracked) listen(pid int) {
	t.pid = pid
	t.handler = libcontainer.NewHandler(t.manager, "/", pid, included(pid > 0))
}

// dir is the cgroup's folder in the hierarchy of a controller.
func (t *tracked) dir(controller string) string {
	at, ok := common.GetControllerPath(t.paths, controller, libcgroups.IsCgroup2UnifiedMode())
	if !ok {
		return ""
	}
	return at
}

// read takes a sample. network reports whether the cgroup's processes have a network of their own.
func (t *tracked) read(m *Measurer, network bool) (*Cgroup, error) {
	pids, err := members(t.dir("cpu"))
	if err != nil {
		return nil, err
	}
	if network && t.kind != Root {
		if t.pid == 0 || !slices.Contains(pids, t.pid) {
			t.listen(first(pids))
		}
	}
	stats, err := t.handler.GetStats()
	if err != nil {
		return nil, err
	}
	if stats.Cpu.Usage.Total > unbelievable { // in its place 0 would be a counter that starts again
		return nil, fmt.Errorf("CPU time is %d", stats.Cpu.Usage.Total)
	}
	t.believe(stats, m)
	stats.Processes = m.proc.count(pids)
	stats.Processes.ThreadsCurrent, stats.Processes.ThreadsMax = t.manager.pids.Current, t.manager.pids.Limit
	if stats.OOMEvents, err = t.oomKills(); err != nil {
		m.book.Add(cgroupSource, t.name, err)
	}
	if err := t.refresh(m, stats, pids, network); err != nil {
		return nil, err
	}
	stats.Processes.Ulimits = t.limits
	common.AssignDeviceNamesToDiskStats((*common.MachineInfoNamer)(m.machine), stats.DiskIo)
	c := &Cgroup{Name: t.name, Kind: t.kind, PodUID: t.podUID, ID: t.id, Spec: t.spec, Stats: stats}
	c.UsageNanoCores = t.rate(stats)
	return c, nil
}

// first is the process that lives longest of those in ascending order; 0 of none.
func first(pids []int) int {
	if len(pids) == 0 {
		return 0
	}
	return pids[0]
}

// rate is the use of processors since the last sample, in billionths of one.
func (t *tracked) rate(s *model.ContainerStats) *uint64 {
	total, before, since := s.Cpu.Usage.Total, t.lastTotal, s.Timestamp.Sub(t.lastTime)
	seen := t.seen
	t.lastTime, t.lastTotal, t.seen = s.Timestamp, total, true
	if !seen || since <= 0 || total < before {
		return nil
	}
	rate := uint64(float64(total-before) / since.Seconds())
	return &rate
}

// believe takes out of a sample what cannot be.
func (t *tracked) believe(s *model.ContainerStats, m *Measurer) {
	for _, v := range []struct {
		what string
		at   *uint64
	}{
		{"memory usage", &s.Memory.Usage},
		{"memory working set", &s.Memory.WorkingSet},
		{"swap", &s.Memory.Swap}, // with cgroup v2 it is a difference
	} {
		if *v.at > unbelievable {
			m.book.Add(cgroupSource, t.name, fmt.Errorf("%s is %d", v.what, *v.at))
			*v.at = 0
		}
	}
}

// oomKills is how many processes of the cgroup itself the kernel killed for want of memory.
func (t *tracked) oomKills() (uint64, error) {
	dir := t.dir("memory")
	if dir == "" || t.kind == Root {
		return 0, nil
	}
	if libcgroups.IsCgroup2UnifiedMode() {
		return keyed(dir, "memory.events.local", "oom_kill")
	}
	return keyed(dir, "memory.oom_control", "oom_kill")
}

// refresh reads the cgroup's limits if they are old.
func (t *tracked) refresh(m *Measurer, stats *model.ContainerStats, pids []int, network bool) error {
	network = network && stats.Network != nil
	young := !t.specAt.IsZero() && stats.Timestamp.Sub(t.specAt) < specPeriod
	if young && t.spec.HasNetwork == network {
		return nil
	}
	spec, err := common.GetSpec(t.paths, machineFactory{m.machine}, network, t.kind == Root)
	if err != nil {
		return err
	}
	switch t.kind {
	case Root:
		spec.HasMemory, spec.Memory.Limit, spec.Memory.SwapLimit = true, m.machine.MemoryCapacity, m.machine.SwapCapacity
		if limit, err := machine.GetMachineMemoryCapacity(); err == nil {
			spec.Memory.Limit = limit
		}
		t.limits = m.proc.openFiles(1)
	case Container:
		t.limits = m.proc.openFiles(first(pids))
	}
	if spec.HasMemory && spec.Memory.Limit == 0 { // cAdvisor's word for no limit
		spec.Memory.Limit = m.machine.MemoryCapacity
	}
	if spec.CreationTime.After(stats.Timestamp) {
		m.book.Add(cgroupSource, t.name, fmt.Errorf("it was created at %s, which is to come", spec.CreationTime))
		spec.CreationTime = stats.Timestamp
	}
	t.spec, t.specAt = spec, stats.Timestamp
	return nil
}

// machineFactory is what the library asks for the machine.
type machineFactory struct{ info *model.MachineInfo }

// GetMachineInfo implements model.MachineInfoFactory.
func (f machineFactory) GetMachineInfo() (*model.MachineInfo, error) { return f.info, nil }

// GetVersionInfo implements model.MachineInfoFactory. Nothing here asks for it.
func (f machineFactory) GetVersionInfo() (*model.VersionInfo, error) {
	return &model.VersionInfo{KernelVersion: machine.KernelVersion(), ContainerOsVersion: machine.ContainerOsVersion()},
		nil
}

// Unlimited reports whether a limit of a cgroup is none.
func Unlimited(limit uint64) bool { return limit > unbelievable }

// pressure reports whether the kernel measures pressure by cgroup.
func pressure(mount string) bool {
	f, err := os.Open(filepath.Join(mount, "cpu.pressure"))
	if err != nil {
		return false
	}
	_ = f.Close() // nothing was written
	return true
}
