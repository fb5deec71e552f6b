package cgroups

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	libcgroups "github.com/opencontainers/cgroups"
	libmanager "github.com/opencontainers/cgroups/manager"
	"github.com/opencontainers/cgroups/systemd"
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/utils/ptr"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/microlet/microlet/services/internal/podcgroup"
	"github.com/microlet/microlet/services/internal/podutil"
)

const (
	// DriverCgroupfs and DriverSystemd are the values of cgroupDriver.
	DriverCgroupfs = "cgroupfs"
	DriverSystemd  = "systemd"

	// ResourcePIDs is the kubelet's internal name of the number of processes, in Allocatable and Capacity.
	ResourcePIDs v1.ResourceName = "pid"

	unifiedMount = "/sys/fs/cgroup"
	// qosRewrite is how old the shares of a QoS class may get before they are written again
	// although they did not change: another program may have written them.
	qosRewrite = time.Minute
)

// Options are the settings of KubeletConfiguration that shape the tree.
type Options struct {
	// Root is cgroupRoot; "" is the root of the hierarchy. It must exist.
	Root string
	// Driver is cgroupDriver: DriverCgroupfs (the default) or DriverSystemd.
	Driver string
	// PerQOS is cgroupsPerQOS. Without it there is no tree at all and pods get Root as parent.
	PerQOS bool
	// CPUCFSQuota and CPUCFSQuotaPeriod are cpuCFSQuota and cpuCFSQuotaPeriod (default 100 ms).
	CPUCFSQuota       bool
	CPUCFSQuotaPeriod time.Duration
	// PodPidsLimit is podPidsLimit; 0 and below: no limit.
	PodPidsLimit int64
	// MemoryThrottlingFactor is the field of that name, nil also when the feature gate
	// MemoryQoS is off: with cgroup v2, memory.high of pods with limits of their own.
	MemoryThrottlingFactor *float64
	// MemoryReservation protects the memory that pods request, with cgroup v2: memoryReservationPolicy is
	// TieredReservation, and the feature gate MemoryQoS is on.
	MemoryReservation bool
	// QOSReserved is how many percent of the memory that pods request pods of lower classes cannot take (qosReserved
	// with its feature gate); nil: they can take all.
	QOSReserved *int64
	// EnforceNodeAllocatable is the field of that name. With "pods" the root of all pods is
	// limited to Allocatable, else to Capacity.
	EnforceNodeAllocatable []string
	// Allocatable is capacity minus the reservations (the kubelet does not subtract the
	// eviction thresholds here), Capacity what the node has; nil leaves the root without
	// limits. Both in CPU, memory, huge pages and ResourcePIDs.
	Allocatable, Capacity v1.ResourceList
	// Metrics show what MemoryReservation protects; nil shows nothing.
	Metrics prometheus.Registerer
	Log     *slog.Logger
}

// Manager owns the cgroups of pods and of QoS classes. It keeps no state that the
// hierarchy does not hold, so a restarted process goes on where the last one stopped.
// Its methods may be called by several goroutines.
type Manager struct {
	o       Options
	log     *slog.Logger
	systemd bool
	unified bool           // the host runs cgroup v2 alone
	root    podcgroup.Name // of all pods, and the class of Guaranteed ones
	parent  podcgroup.Name // what the root lies in
	mounts  map[string]string
	needed  []string
	// protected are the metrics of MemoryReservation.
	protected protectedMemory

	qos struct {
		sync.Mutex
		requests requests
		written  time.Time
	}
}

// Unified reports whether the host runs cgroup v2 alone.
func Unified() bool { return libcgroups.IsCgroup2UnifiedMode() }

// CheckVersion returns an error when the host runs cgroup v1 and failCgroupV1 forbids it.
func CheckVersion(failCgroupV1 bool) error {
	if failCgroupV1 && !Unified() {
		return errors.New("failCgroupV1 is true and this host runs cgroup v1, which the kubelet no longer supports: " +
			"boot with cgroup v2 (systemd.unified_cgroup_hierarchy=1), or set failCgroupV1: false")
	}
	return nil
}

// New reads which controllers the host has. It changes nothing.
func New(o Options) (*Manager, error) {
	if o.Log == nil {
		o.Log = slog.Default()
	}
	if o.CPUCFSQuotaPeriod == 0 {
		o.CPUCFSQuotaPeriod = DefaultQuotaPeriod * time.Microsecond
	}
	m := &Manager{o: o, log: o.Log, unified: Unified()}
	switch o.Driver {
	case "", DriverCgroupfs:
	case DriverSystemd:
		m.systemd = true
		if !systemd.IsRunningSystemd() {
			return nil,
				errors.New(`cgroupDriver is "systemd" and systemd does not run on this host: set cgroupDriver: cgroupfs, here and in the runtime`)
		}
	default:
		return nil, fmt.Errorf(`cgroupDriver is %q: it must be "cgroupfs" or "systemd"`, o.Driver)
	}
	m.parent = podcgroup.ParseRoot(o.Root, m.systemd)
	m.root = m.parent
	if o.PerQOS {
		m.root = m.parent.Child(podcgroup.RootPart)
	}
	if err := m.readMounts(); err != nil {
		return nil, err
	}
	m.protected = newProtectedMemory()
	if o.Metrics == nil {
		return m, nil
	}
	return m, m.protected.register(o.Metrics)
}

// readMounts finds where each controller is mounted and which of them a cgroup needs to
// count as complete: those that the kubelet asks for, as far as this host has them.
func (m *Manager) readMounts() error {
	if m.unified {
		m.mounts = map[string]string{"": unifiedMount}
		have, err := unifiedControllers(unifiedMount)
		if err != nil {
			return fmt.Errorf("read the cgroup controllers of this host: %w", err)
		}
		for _, c := range []string{"cpu", "cpuset", "memory", "hugetlb", "pids"} {
			if slices.Contains(have, c) {
				m.needed = append(m.needed, c)
			}
		}
		return nil
	}
	mounts, err := libcgroups.GetCgroupMounts(true)
	if err != nil {
		return fmt.Errorf("find the cgroup mounts of this host: %w", err)
	}
	m.mounts = map[string]string{}
	for _, mount := range mounts {
		for _, controller := range mount.Subsystems {
			// A controller may be mounted several times: the shortest path is the host's own.
			if known := m.mounts[controller]; known == "" || len(mount.Mountpoint) < len(known) {
				m.mounts[controller] = mount.Mountpoint
			}
		}
	}
	for _, c := range []string{"cpu", "memory", "pids"} {
		if m.mounts[c] == "" {
			return fmt.Errorf("cgroup v1 controller %q is not mounted: mount it below /sys/fs/cgroup", c)
		}
	}
	for _, c := range []string{"cpu", "cpuacct", "cpuset", "memory", "systemd", "pids", "hugetlb"} {
		if m.mounts[c] != "" {
			m.needed = append(m.needed, c)
		}
	}
	return nil
}

// EnsureRoots makes the root of all pods with its limits, and the two QoS classes. Existing classes get their settings,
// an existing root keeps its limits: LimitPods sets them, which may fail while more than they allow is in use.
func (m *Manager) EnsureRoots() error {
	if !m.o.PerQOS {
		return nil
	}
	if ok, err := m.exists(m.parent); err != nil || !ok {
		return fmt.Errorf("cgroupRoot %q does not have all of %s: create it, or leave cgroupRoot empty: %w",
			m.o.Root, strings.Join(m.needed, ", "), errors.Join(err, os.ErrNotExist))
	}
	unbounded := map[string]int64{}
	for _, page := range libcgroups.HugePageSizes() {
		unbounded[page] = 1 << 62
	}
	bestEffort := resources{shares: ptr.To[uint64](MinShares), hugePages: unbounded}
	burstable := resources{hugePages: unbounded}
	if !m.o.MemoryReservation { // UpdateQOS protects it; until then what is protected stays so
		burstable.unified = map[string]string{"memory.low": "0"}
	}
	return errors.Join(
		m.ensure(m.root, m.nodeResources()),
		m.apply(m.root.Child(podcgroup.BurstablePart), burstable),
		m.apply(m.root.Child(podcgroup.BestEffortPart), bestEffort),
	)
}

// PodsRoot returns the cgroup of all pods in its plain parts; nil is the root of the hierarchy, which has no limits.
func (m *Manager) PodsRoot() podcgroup.Name { return m.root }

// LimitPods sets the limits of the cgroup of all pods. It fails while the pods use more memory than they may. The error
// is the library's, which is what the kubelet's Event says.
func (m *Manager) LimitPods() error {
	if len(m.root) == 0 {
		return nil
	}
	return m.write(m.root, m.nodeResources())
}

// PodParent returns the cgroup of a pod as CRI's cgroup_parent has it: a path below the
// mount point, in the driver's spelling; "" when there is no cgroup a pod.
func (m *Manager) PodParent(p *v1.Pod) string {
	if !m.o.PerQOS {
		return ""
	}
	path, err := m.path(m.podName(p))
	if err != nil { // only a root that no slice can have, which EnsureRoots refuses before any pod
		return ""
	}
	return path
}

// EnsurePod makes the pod's cgroup if it is not there, and returns its cgroup_parent. One
// that is there stays as it is: a container's limits never change under it.
func (m *Manager) EnsurePod(p *v1.Pod) (string, error) {
	if !m.o.PerQOS {
		return "", nil
	}
	if err := validUID(p.UID); err != nil {
		return "", err
	}
	n := m.podName(p)
	ok, err := m.exists(n)
	if err != nil {
		return "", err
	}
	if !ok {
		if err := m.create(n, m.podResources(p)); err != nil {
			return "", fmt.Errorf("create the cgroup of pod %s/%s: %w", p.Namespace, p.Name, err)
		}
	}
	return m.path(n)
}

// RemovePod kills what is left in the cgroups of a pod, whatever its class, and removes
// them. A pod without a cgroup is success.
func (m *Manager) RemovePod(ctx context.Context, uid types.UID) error {
	if !m.o.PerQOS {
		return nil
	}
	if err := validUID(uid); err != nil {
		return err
	}
	var all error
	for _, class := range m.classes() {
		all = errors.Join(all, m.remove(ctx, class.Child(podcgroup.PodPrefix+string(uid))))
	}
	return all
}

// Pods returns the pods that have a cgroup, in any hierarchy: uid → cgroup_parent.
func (m *Manager) Pods() (map[types.UID]string, error) {
	found := map[types.UID]string{}
	if !m.o.PerQOS {
		return found, nil
	}
	for _, class := range m.classes() {
		below, err := m.path(class)
		if err != nil {
			return nil, err
		}
		for _, mount := range m.mounts {
			entries, err := os.ReadDir(filepath.Join(mount, below))
			if errors.Is(err, os.ErrNotExist) {
				continue
			}
			if err != nil {
				return nil, fmt.Errorf("list the cgroups of pods: %w", err)
			}
			for _, e := range entries {
				if uid, ok := podcgroup.UIDOf(e.Name(), m.systemd); ok && e.IsDir() {
					found[types.UID(uid)] = filepath.Join(below, e.Name())
				}
			}
		}
	}
	return found, nil
}

// validUID keeps a pod's UID, which may come from a manifest, from naming another cgroup. RemovePod would kill the
// processes in it.
func validUID(uid types.UID) error {
	if uid == "" || strings.ContainsAny(string(uid), "/_\x00") {
		return fmt.Errorf("metadata.uid %q cannot be the name of a cgroup: leave it out or use a UUID", uid)
	}
	return nil
}

func (m *Manager) classes() []podcgroup.Name {
	return podcgroup.Classes(m.root)
}

func (m *Manager) podName(p *v1.Pod) podcgroup.Name {
	class := m.root
	switch podutil.QOSClass(p) {
	case v1.PodQOSBurstable:
		class = m.root.Child(podcgroup.BurstablePart)
	case v1.PodQOSBestEffort:
		class = m.root.Child(podcgroup.BestEffortPart)
	}
	return class.Child(podcgroup.PodPrefix + string(p.UID))
}

func (m *Manager) path(n podcgroup.Name) (string, error) {
	return n.Path(m.systemd)
}

func (m *Manager) enforcesPods() bool { return slices.Contains(m.o.EnforceNodeAllocatable, "pods") }

func (m *Manager) periodMicros() int64 { return m.o.CPUCFSQuotaPeriod.Microseconds() }

func (m *Manager) manager(n podcgroup.Name, r *libcgroups.Resources) (libcgroups.Manager, error) {
	config := &libcgroups.Cgroup{Resources: r, Systemd: m.systemd}
	path, err := m.path(n)
	if err != nil {
		return nil, err
	}
	if m.systemd {
		// systemd is given a unit and its parent, not a path.
		config.Name = filepath.Base(path)
		if config.Parent = filepath.Base(filepath.Dir(path)); config.Parent == "/" {
			config.Parent = "-.slice"
		}
	} else {
		config.Path = path
	}
	made, err := libmanager.New(config)
	if err != nil {
		return nil, fmt.Errorf("open cgroup %s: %w", path, err)
	}
	return made, nil
}
