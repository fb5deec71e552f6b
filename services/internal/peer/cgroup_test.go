package peer

import (
	"slices"
	"strings"
	"testing"

	"github.com/microlet/microlet/proto/role"
)

const (
	unified = "0::/system.slice/microlet.service\n"
	systemd = "12:pids:/system.slice/microlet.service\n11:cpu,cpuacct:/\n1:name=systemd:/system.slice/microlet.service\n" +
		"0::/system.slice/microlet.service\n"
)

func mustParse(t *testing.T, text string) cgroups {
	t.Helper()
	c, err := parseCgroups(text)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestParseCgroups(t *testing.T) {
	c := mustParse(t, "2:cpu,cpuacct:/a:b\n1:name=systemd:/c d\n0::/\n")
	if c["cpu,cpuacct"] != "/a:b" || c["name=systemd"] != "/c d" || c[""] != "/" || len(c) != 3 {
		t.Errorf("parsed %v", c)
	}
	for _, bad := range []string{"", "0:/", "0::relative\n", "0::/a\n0::/b\n", "\n"} {
		if c, err := parseCgroups(bad); err == nil {
			t.Errorf("%q became %v, want an error", bad, c)
		}
	}
}

// Which of two processes' cgroups are the same, on both versions of cgroups.
func TestEqualCgroups(t *testing.T) {
	for _, c := range []struct {
		ours, theirs string
		want         bool
	}{
		{unified, unified, true},
		{unified, "0::/system.slice/microlet.service/below\n", false},
		{unified, "0::/system.slice\n", false},
		{"0::/\n", "0::/\n", true},
		{"0::/\n", "0::/kubepods.slice/x\n", false},
		{systemd, systemd, true},
		{systemd, strings.Replace(systemd, "pids:/system.slice/microlet.service", "pids:/", 1), false},
		{systemd, unified, false},
	} {
		if got := mustParse(t, c.theirs).equal(mustParse(t, c.ours)); got != c.want {
			t.Errorf("%q beside %q: %v, want %v", c.theirs, c.ours, got, c.want)
		}
	}
}

func TestCgroupsOfAUnit(t *testing.T) {
	for _, c := range []struct {
		text, unit string
		want       bool
	}{
		{unified, "/system.slice/microlet.service", true},
		{unified, "/system.slice/microlet", false},
		{unified, "/system.slice", false},
		{"0::/\n", "/system.slice/microlet.service", false},
		{systemd, "/system.slice/microlet.service", true},
		{strings.Replace(systemd, "11:cpu,cpuacct:/", "11:cpu,cpuacct:/system.slice", 1), "/system.slice/microlet.service",
			true},
		{strings.Replace(systemd, "11:cpu,cpuacct:/", "11:cpu,cpuacct:/kubepods/podx/c", 1), "/system.slice/microlet.service",
			false},
		// What a helper sees of the host from its own cgroup namespace.
		{"0::/../../../system.slice/microlet.service\n", "/system.slice/microlet.service", true},
		{"0::/../../podx/system.slice/microlet.service\n", "/system.slice/microlet.service", false},
		{"0::/..\n", "/system.slice/microlet.service", false},
		// Whatever is right below a cgroup, in all hierarchies the same.
		{"0::/microlet/0a1b\n", "/microlet/*", true},
		{"2:cpu:/microlet/0a1b\n1:name=systemd:/microlet/0a1b\n0::/\n", "/microlet/*", true},
		{"2:cpu:/microlet/0a1b\n1:name=systemd:/microlet/9c5d\n", "/microlet/*", false},
		{"0::/microlet/0a1b/kubepods/podx/c\n", "/microlet/*", false},
		{"2:cpu:/kubepods/podx/c\n1:name=systemd:/microlet/0a1b\n", "/microlet/*", false},
		{"0::/microlet\n", "/microlet/*", false},
		{"0::/microlets/0a1b\n", "/microlet/*", false},
		{"0::/0a1b\n", "/microlet/*", false},
		{"0::/microlet/*\n", "/microlet/*", false},
	} {
		if got := mustParse(t, c.text).within(c.unit); got != c.want {
			t.Errorf("%q is the unit %s: %v, want %v", c.text, c.unit, got, c.want)
		}
	}
}

func TestPodsOfCgroups(t *testing.T) {
	const a, b = "0b4ad7d5-4f2c-4a5e-9a4c-6a8c9b3a7f10", "9c5d2f4e-0a0b-4b69-8f0e-2d3c4b5a6978"
	slice := func(uid string) string { return strings.ReplaceAll(uid, "-", "_") + ".slice" }
	for _, c := range []struct {
		name, theirs, ours string
		want               []string
	}{
		{"no pod", unified, unified, nil},
		{"cgroupfs, guaranteed", "0::/kubepods/pod" + a + "/c\n", unified, []string{a}},
		{"cgroupfs, burstable, a container's own cgroup", "0::/kubepods/burstable/pod" + a + "/c/x/y\n", unified,
			[]string{a}},
		{"cgroupfs below a cgroupRoot", "0::/nodes/one/kubepods/besteffort/pod" + a + "/c\n", unified, []string{a}},
		{"systemd, guaranteed", "0::/kubepods.slice/kubepods-pod" + slice(a) + "/cri-containerd-c.scope\n", unified,
			[]string{a}},
		{"systemd, burstable", "0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod" + slice(a) +
			"/crio-c.scope\n", unified, []string{a}},
		{"systemd below a cgroupRoot",
			"0::/one.slice/one-kubepods.slice/one-kubepods-besteffort.slice/one-kubepods-besteffort-pod" + slice(a) + "/c\n",
			unified, []string{a}},
		{"a static pod", "0::/kubepods/pod2f0e8a9d3c4b5a69788f0e2d3c4b5a69/c\n", unified,
			[]string{"2f0e8a9d3c4b5a69788f0e2d3c4b5a69"}},
		{"the pod's own name for another", "0::/kubepods/pod" + a + "/c/kubepods/pod" + b + "\n", unified, []string{a}},
		{"v1, not in every hierarchy", "2:cpu:/kubepods/pod" + a + "/c\n1:name=systemd:/\n0::/\n", systemd, []string{a}},
		{"v1, several", "2:cpu:/kubepods/pod" + a + "/c\n1:name=systemd:/kubepods/pod" + b + "/c\n", systemd, []string{a, b}},
		{"this process is in the same pod", "0::/kubepods/pod" + a + "/other\n", "0::/kubepods/pod" + a + "/c\n", nil},
		{"a pod of a node that is a pod", "0::/kubepods/pod" + a + "/c/kubepods/pod" + b + "/d\n",
			"0::/kubepods/pod" + a + "/c/system.slice/m.service\n", []string{b}},
		{"seen by a helper", "0::/../../pod" + a + "/c\n", "0::/\n", []string{a}},
		{"podman's service", "0::/system.slice/podman.service\n", unified, nil},
		{"podman's container", "0::/machine.slice/libpod-0a1b.scope\n", unified, nil},
	} {
		if got := mustParse(t, c.theirs).pods(mustParse(t, c.ours).around()); !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}

// The supervisor's own cgroups for single processes are part of the agent, wherever they are; a pod cannot pretend it.
func TestInstanceOfTheAgent(t *testing.T) {
	limited := "/" + LimitedCgroup + "-0a1b2c3d-stats"
	for _, c := range []struct {
		ours, theirs string
		want         bool
	}{
		{"0::/system.slice/microlet.service/" + AgentCgroup + "-0a1b2c3d\n",
			"0::/system.slice/microlet.service" + limited + "\n", true},
		{systemd + "9:memory:/system.slice/microlet.service\n",
			systemd + "9:memory:/system.slice/microlet.service" + limited + "\n", true},
		{systemd + "9:memory:/\n", systemd + "9:memory:" + limited + "\n", true},
		{unified, "0::/system.slice/other.service" + limited + "\n", false},
		{unified, "0::/kubepods/podx/c" + limited + "\n", false},
		{unified, "0::/system.slice/microlet.service" + limited + "/below\n", false},
		{unified, "0::/system.slice/microlet.service/" + LimitedCgroup + "\n", false},
	} {
		got, reason := Rules{}.judge(47106, []role.Role{role.Stats}, mustParse(t, c.theirs), mustParse(t, c.ours))
		if (len(got) == 1) != c.want {
			t.Errorf("%q beside %q is %v (%s), want a part of it: %v", c.theirs, c.ours, got, reason, c.want)
		}
	}
}
