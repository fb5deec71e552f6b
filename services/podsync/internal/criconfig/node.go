package criconfig

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	libcgroups "github.com/opencontainers/cgroups"
	"github.com/opencontainers/selinux/go-selinux"
	"golang.org/x/sys/unix"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Swap behaviours of KubeletConfiguration's memorySwap.swapBehavior.
const (
	NoSwap      = "NoSwap"
	LimitedSwap = "LimitedSwap"
)

// Node is what all pods of a node have in common: settings of KubeletConfiguration and
// facts of the machine. Everything is explicit, so that a test can be any machine.
type Node struct {
	// RootDir is --root-dir, PodLogsDir is podLogsDir; ContainerLogsDir holds the links to
	// container logs that collectors follow ("" makes none).
	RootDir, PodLogsDir, ContainerLogsDir string
	// LogsGroup may read the pods' logs; 0 leaves them readable for all.
	LogsGroup int
	// HostsFile is the node's own hosts file, for pods on the host's network.
	HostsFile string
	// DefaultSysctls are those of each pod that names none of its own (defaultPodSysctls).
	DefaultSysctls map[string]string
	// ClusterDomain, SeccompDefault, CPUCFSQuota and CPUCFSQuotaPeriod (0 is 100 ms) are the
	// fields of that name.
	ClusterDomain     string
	SeccompDefault    bool
	CPUCFSQuota       bool
	CPUCFSQuotaPeriod time.Duration
	// SingleProcessOOMKill is the field of that name; nil: true with cgroup v1, false with v2.
	SingleProcessOOMKill *bool
	// SwapBehavior is memorySwap.swapBehavior; "" is NoSwap.
	SwapBehavior string
	// MemoryQoS is the feature gate of that name (on by default), MemoryThrottlingFactor the
	// field, MemoryReservation whether memoryReservationPolicy is TieredReservation. They act
	// with cgroup v2 only.
	MemoryQoS              bool
	MemoryThrottlingFactor *float64
	MemoryReservation      bool

	// StopSignals is the feature gate ContainerStopSignals (alpha, off by default).
	StopSignals bool

	// MemoryCapacity and SwapCapacity of the machine, in bytes.
	MemoryCapacity, SwapCapacity int64
	// Unified: the machine runs cgroup v2 alone. SwapController: cgroups can limit swap.
	Unified, SwapController bool
	// SELinux is on.
	SELinux bool
	// HugePageSizes of the kernel, as it spells them ("2MB").
	HugePageSizes []string
	// ThermalPaths are the CPUs' thermal_throttle folders, which containers do not get to see.
	ThermalPaths []string
	// RecursiveReadOnly reports whether the pod's runtime handler can mount read-only all the way
	// down; nil: none can.
	RecursiveReadOnly func(p *v1.Pod) bool

	// Allocatable of the node, for resourceFieldRef without a limit; nil: unknown.
	Allocatable func() v1.ResourceList
	// HostIPs are the node's addresses, primary first; empty while unknown.
	HostIPs func() []string
}

// DefaultNode reads the facts of this machine and sets the kubelet's defaults otherwise.
func DefaultNode(rootDir string) (Node, error) {
	n := Node{
		RootDir: rootDir, PodLogsDir: "/var/log/pods", ContainerLogsDir: "/var/log/containers", HostsFile: "/etc/hosts",
		CPUCFSQuota: true, SwapBehavior: NoSwap, MemoryQoS: true,
		Unified: libcgroups.IsCgroup2UnifiedMode(), SELinux: selinux.GetEnabled(),
		HugePageSizes: libcgroups.HugePageSizes(), ThermalPaths: thermalPaths("/sys/devices/system/cpu"),
	}
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		return Node{}, fmt.Errorf("read this machine's memory: %w", err)
	}
	// MemTotal, as cAdvisor has it, is sysinfo's amount.
	n.MemoryCapacity, n.SwapCapacity = int64(info.Totalram)*int64(info.Unit), int64(info.Totalswap)*int64(info.Unit)
	available, err := swapController(n.Unified)
	if err != nil {
		return Node{}, err
	}
	n.SwapController = available
	return n, nil
}

// swapController reports whether cgroups can limit swap here.
func swapController(unified bool) (bool, error) {
	file := "/sys/fs/cgroup/memory/memory.memsw.limit_in_bytes"
	if unified {
		// The root cgroup has no such file, so our own cgroup is examined.
		own, err := libcgroups.ParseCgroupFile("/proc/self/cgroup")
		if err != nil {
			return false, fmt.Errorf("find this process's cgroup: %w", err)
		}
		file = filepath.Join("/sys/fs/cgroup", own[""], "memory.swap.max")
	}
	switch _, err := os.Stat(file); {
	case err == nil:
		return true, nil
	case errors.Is(err, os.ErrNotExist):
		return false, nil
	default:
		return false, fmt.Errorf("look for swap limits: %w", err)
	}
}

// thermalPaths lists the existing thermal_throttle folders in the order of the CPUs.
func thermalPaths(dir string) []string {
	found, err := filepath.Glob(filepath.Join(dir, "cpu[0-9]*", "thermal_throttle"))
	if err != nil {
		return nil
	}
	number := func(path string) int {
		n, _ := strconv.Atoi(strings.TrimPrefix(filepath.Base(filepath.Dir(path)), "cpu"))
		return n
	}
	slices.SortFunc(found, func(a, b string) int { return number(a) - number(b) })
	return found
}

// PodDir is the pod's data folder.
func (n *Node) PodDir(uid types.UID) string {
	return filepath.Join(n.podsDir(), string(uid))
}

func (n *Node) podsDir() string { return filepath.Join(n.RootDir, "pods") }

func (n *Node) allocatable() v1.ResourceList {
	if n.Allocatable == nil {
		return nil
	}
	return n.Allocatable()
}

func (n *Node) hostIPs() []string {
	if n.HostIPs == nil {
		return nil
	}
	return n.HostIPs()
}

func (n *Node) periodMicros() int64 {
	if n.CPUCFSQuotaPeriod == 0 {
		return 100000
	}
	return n.CPUCFSQuotaPeriod.Microseconds()
}

// wholeGroupOOM reports whether an out-of-memory kill takes all processes of a container.
func (n *Node) wholeGroupOOM() bool {
	return n.Unified && (n.SingleProcessOOMKill == nil || !*n.SingleProcessOOMKill)
}
