package nodecheck

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/services/internal/kubeletconfig"
)

func (h Host) path(name string) string { return filepath.Join(h.Root, name) }

// lines are those of a file; none if it cannot be read.
func (h Host) lines(name string) []string {
	data, err := os.ReadFile(h.path(name))
	if err != nil {
		return nil
	}
	var all []string
	for s := bufio.NewScanner(bytes.NewReader(data)); s.Scan(); {
		all = append(all, s.Text())
	}
	return all
}

// identity checks the user that runs the check, and that no other user or group has an ID of the services.
func (h Host) identity(r *report) {
	if h.UID != 0 {
		r.failed("user", fmt.Sprintf("microlet up runs as root, and this is uid %d; some checks are incomplete", h.UID),
			"run it with sudo")
	}
	ids := map[int]string{}
	for _, name := range role.All() {
		if id, err := role.Get(name); err == nil && id.UID != 0 {
			ids[id.UID] = string(name)
		}
	}
	ids[role.GroupNode], ids[role.GroupLogs] = "the node's group", "the group of the logs"
	taken := 0
	for _, file := range []string{"etc/passwd", "etc/group"} {
		for _, line := range h.lines(file) {
			fields := strings.Split(line, ":")
			if len(fields) < 3 {
				continue
			}
			n, err := strconv.Atoi(fields[2])
			if err != nil || ids[n] == "" || strings.HasPrefix(fields[0], "microlet") {
				continue
			}
			taken++
			r.failed("users", fmt.Sprintf("/%s gives %d, which is for %s, to %s", file, n, ids[n], fields[0]),
				"give it another number: a user with this number can act as that service")
		}
	}
	if taken == 0 {
		r.ok("users", "the users and groups %d to %d belong to the services alone", role.GroupNode, role.GroupLogs)
	}
}

// controllers are those of cgroup v2 that pods need.
var controllers = []string{"cpu", "memory", "pids"}

// memoryRemedy is for a Raspberry Pi most often, whose firmware turns memory off.
const memoryRemedy = "add cgroup_enable=memory to the kernel's command line, on a Raspberry Pi in " +
	"/boot/firmware/cmdline.txt, and boot; with another controller, boot a kernel that has it"

// withoutMemory reports whether the kernel has the controller memory and does not use it.
func (h Host) withoutMemory() bool {
	return slices.ContainsFunc(h.lines("proc/cgroups"), func(line string) bool {
		fields := strings.Fields(line)
		return len(fields) == 4 && fields[0] == "memory" && fields[3] == "0"
	})
}

func (h Host) cgroup(r *report) {
	have := strings.Fields(strings.Join(h.lines("sys/fs/cgroup/cgroup.controllers"), " "))
	if len(have) == 0 && h.withoutMemory() {
		r.failed("cgroup", "cgroup v1 lacks the controller memory", memoryRemedy)
	}
	if len(have) == 0 && h.refuses("failCgroupV1") {
		return
	}
	if len(have) == 0 {
		r.warn("cgroup", "this machine has cgroup v1", "boot it with systemd.unified_cgroup_hierarchy=1 for cgroup v2")
		return
	}
	var missing []string
	for _, c := range controllers {
		if !slices.Contains(have, c) {
			missing = append(missing, c)
		}
	}
	if len(missing) > 0 {
		r.failed("cgroup", "cgroup v2 lacks the controllers "+strings.Join(missing, ", "),
			memoryRemedy)
		return
	}
	r.ok("cgroup", "version 2 with %s", strings.Join(controllers, ", "))
}

// wantedSysctls are what pod networks need, each with why.
var wantedSysctls = []struct{ name, value, why string }{
	{"net/ipv4/ip_forward", "1", "pods reach no other node"},
	{"net/bridge/bridge-nf-call-iptables", "1", "Services may not work for pods on a bridge"},
}

// kernel checks file systems, modules and sysctls.
func (h Host) kernel(r *report) {
	overlay := func(line string) bool { return strings.HasSuffix(line, "\toverlay") }
	if !slices.ContainsFunc(h.lines("proc/filesystems"), overlay) {
		r.warn("kernel module", "overlay is not loaded: most runtimes keep containers on it", "modprobe overlay")
	} else {
		r.ok("kernel module", "overlay is there")
	}
	bridge := true
	if _, err := os.Stat(h.path("proc/sys/net/bridge")); err != nil {
		bridge = false
		r.warn("kernel module", "br_netfilter is not loaded: Services may not work for pods on a bridge",
			"modprobe br_netfilter; networks without a bridge do not need it")
	}
	for _, s := range wantedSysctls {
		name := strings.ReplaceAll(s.name, "/", ".")
		if !bridge && strings.HasPrefix(s.name, "net/bridge/") {
			continue
		}
		if got := strings.Join(h.lines("proc/sys/"+s.name), " "); got != s.value {
			r.warn("sysctl", fmt.Sprintf("%s is %q: %s", name, got, s.why), fmt.Sprintf("sysctl -w %s=%s", name, s.value))
		} else {
			r.ok("sysctl", "%s is %s", name, s.value)
		}
	}
}

func (h Host) swap(r *report, k *kubeletconfig.Config) {
	var on []string
	for _, line := range h.lines("proc/swaps") {
		if fields := strings.Fields(line); len(fields) > 1 && fields[0] != "Filename" {
			on = append(on, fields[0])
		}
	}
	switch {
	case h.refuses("failSwapOn"):
	case len(on) == 0:
		r.ok("swap", "off")
	case k != nil && !*k.Kubelet.FailSwapOn:
		r.warn("swap", "on: "+strings.Join(on, ", ")+"; failSwapOn allows it", "swapoff -a, and remove it from /etc/fstab")
	default:
		r.failed("swap", "on: "+strings.Join(on, ", "), "swapoff -a and remove it from /etc/fstab, or set failSwapOn: false")
	}
}

// programs are those that the agent runs.
func (h Host) programs(r *report) {
	for _, p := range []struct{ name, for_ string }{
		{"mount", "volumes"}, {"umount", "volumes"}, {"iptables", "the kubelet's chains, which some network plugins expect"},
	} {
		if _, err := exec.LookPath(p.name); err != nil {
			r.warn("program", p.name+" is not in PATH; it is for "+p.for_, "install it, or set PATH in the unit")
		}
	}
}
