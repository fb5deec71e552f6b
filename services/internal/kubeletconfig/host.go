package kubeletconfig

import (
	"bufio"
	"bytes"
	"os"
	"path/filepath"
	"strings"

	"k8s.io/utils/cpuset"
)

// host is what the configuration is checked against on this machine.
type host struct {
	// root is the folder that /proc and /sys are under.
	root string
}

var thisHost = host{root: "/"}

// check refuses what the configuration forbids on this machine, as the kubelet does at its start.
func (h host) check(p *problems, c *Config) {
	v1 := !h.cgroup2()
	if v1 && *c.Kubelet.FailCgroupV1 {
		p.add("failCgroupV1", true, "this machine has cgroup v1", "boot it with cgroup v2, or set failCgroupV1: false")
	}
	if kill := c.Kubelet.SingleProcessOOMKill; v1 && kill != nil && !*kill {
		p.add("singleProcessOOMKill", false, "this machine has cgroup v1, which cannot kill a container as a whole",
			"remove it or set true")
	}
	if v1 && c.Kubelet.MemorySwap.SwapBehavior == limitedSwap {
		p.add("memorySwap.swapBehavior", limitedSwap, "this machine has cgroup v1", "set NoSwap")
	}
	if cpus, err := cpuset.Parse(c.Kubelet.ReservedSystemCPUs); err == nil && !cpus.IsEmpty() {
		online, err := h.onlineCPUs()
		p.check(err == nil && cpus.IsSubsetOf(online), "reservedSystemCPUs", cpus.String(),
			"this machine does not have all of these CPUs", "write some of "+online.String())
	}
	if swap := h.swap(); len(swap) > 0 && *c.Kubelet.FailSwapOn {
		p.add("failSwapOn", true, "swap is on: "+strings.Join(swap, ", "),
			"turn it off with swapoff, or set failSwapOn: false")
	}
}

// cgroup2 reports whether the unified hierarchy is mounted, which alone has this file in its root.
func (h host) cgroup2() bool {
	_, err := os.Stat(filepath.Join(h.root, "sys/fs/cgroup/cgroup.controllers"))
	return err == nil
}

// onlineCPUs are the CPUs that this machine uses.
func (h host) onlineCPUs() (cpuset.CPUSet, error) {
	text, err := os.ReadFile(filepath.Join(h.root, "sys/devices/system/cpu/online"))
	if err != nil {
		return cpuset.New(), err
	}
	return cpuset.Parse(strings.TrimSpace(string(text)))
}

// swap lists the swap devices and files in use; none where the kernel has no swap.
func (h host) swap() []string {
	data, err := os.ReadFile(filepath.Join(h.root, "proc/swaps"))
	if err != nil {
		return nil
	}
	var names []string
	lines := bufio.NewScanner(bytes.NewReader(data))
	for lines.Scan() {
		if fields := strings.Fields(lines.Text()); len(fields) >= 2 && fields[0] != "Filename" {
			names = append(names, fields[0])
		}
	}
	return names
}
