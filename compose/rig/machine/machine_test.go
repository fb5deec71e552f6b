//go:build machine

package machine

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/microlet/microlet/compose/rig/internal/process"
)

// newMachine starts a machine that ends with the test.
func newMachine(t *testing.T, change func(*Options)) Machine {
	t.Helper()
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	assets, err := Build(t.Context(), here, os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	o := Options{Dir: filepath.Join(t.TempDir(), "m"), Assets: assets, Memory: 1024}
	if change != nil {
		change(&o)
	}
	begin := time.Now()
	m, err := Start(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("started in %s", time.Since(begin).Round(10*time.Millisecond))
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the end of the console:\n%s", m.Console(30))
		}
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	})
	return m
}

// output runs a command that has to succeed and returns what it wrote, without the last line's end.
func output(t *testing.T, m Machine, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 120*patience(m))
	defer cancel()
	r, err := m.Run(ctx, Command{Args: args})
	if err != nil || r.Code != 0 {
		t.Fatalf("%s: code %d, %v: %s", strings.Join(args, " "), r.Code, err, r.Stderr)
	}
	return strings.TrimRight(string(r.Stdout), "\n")
}

// patience is how long the machine may take for a simple answer.
func patience(m Machine) time.Duration { return m.(*machine).r.patience() }

// helperDir has a process of this test start a machine in that folder, print a line, and wait.
const helperDir = "MACHINE_TEST_DIR"

func TestMain(m *testing.M) {
	dir := os.Getenv(helperDir)
	if dir == "" {
		os.Exit(m.Run())
	}
	here, err := os.Getwd()
	if err == nil {
		var assets Assets
		if assets, err = Build(context.Background(), here, os.Stderr); err == nil {
			_, err = Start(context.Background(), Options{Dir: dir, Assets: assets, Memory: 512, CPUs: 1})
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println("started")
	select {}
}

func TestEndsWithItsCaller(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "m")
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), helperDir+"="+dir)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil || line != "started\n" {
		t.Fatalf("the helper says %q, %v", line, err)
	}
	r, err := load(dir)
	if err != nil || !r.Process.Alive() {
		t.Fatalf("the machine does not run: %v", err)
	}
	inside, err := process.Descendants([]process.Record{r.Process})
	// Each of its programs is a process of User-Mode Linux's, and all together are QEMU.
	least := map[Kind]int{KindUML: 5, KindQEMU: 1}[r.Assets.kind()]
	if err != nil || len(inside) < least {
		t.Fatalf("%d processes are the machine's, %v: want %d at least", len(inside), err, least)
	}
	network, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/net", r.Process.PID))
	if err != nil || !namespaces(t)[network] {
		t.Fatalf("the machine's network namespace is %q, %v", network, err)
	}
	if own, err := os.Readlink("/proc/self/ns/net"); err != nil || own == network {
		t.Fatalf("the machine's network namespace is this one's, %v", err)
	}

	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	deadline := time.Now().Add(5 * time.Second)
	for {
		var left []string
		if r.Process.Alive() {
			left = append(left, "the machine's process")
		}
		for _, p := range inside {
			if p.Alive() {
				left = append(left, p.Name)
			}
		}
		if namespaces(t)[network] {
			left = append(left, network)
		}
		if len(left) == 0 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("left behind: %v", left)
		}
		time.Sleep(10 * time.Millisecond)
	}
	// Its memory is a file without a name: only one that is still held would take room.
	if entries, err := os.ReadDir("/dev/shm"); err != nil {
		t.Error(err)
	} else {
		for _, e := range entries {
			if strings.HasPrefix(e.Name(), "vm_file-") {
				t.Errorf("left behind: /dev/shm/%s", e.Name())
			}
		}
	}
}

// namespaces returns the network namespaces in which there is a process.
func namespaces(t *testing.T) map[string]bool {
	t.Helper()
	links, err := filepath.Glob("/proc/[0-9]*/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]bool{}
	for _, link := range links {
		if target, err := os.Readlink(link); err == nil {
			found[target] = true
		}
	}
	return found
}

func TestSideBySideAndOpenedAgain(t *testing.T) {
	a := newMachine(t, func(o *Options) { o.Name, o.Detached = "first", true })
	b := newMachine(t, func(o *Options) { o.Name = "second" })
	again, err := Open(a.(*machine).dir)
	if err != nil {
		t.Fatal(err)
	}
	output(t, a, "touch", "/srv/mine")
	for _, tc := range []struct {
		m    Machine
		want string
	}{{again, "first\n/srv/mine"}, {b, "second"}} {
		if got := output(t, tc.m, "sh", "-c", "hostname; ls /srv/mine 2>/dev/null || true"); got != tc.want {
			t.Errorf("%q, want %q", got, tc.want)
		}
	}
	if x, y := output(t, a, "cat", "/etc/machine-id"), output(t, b, "cat", "/etc/machine-id"); x == y || len(x) != 32 {
		t.Errorf("machine ids %q and %q", x, y)
	}
	if err := again.CutPower(t.Context()); err != nil || a.Running() || !b.Running() {
		t.Errorf("power cut by another hand: %v, running: %v and %v, want false and true", err, a.Running(),
			b.Running())
	}
}

// What only the kernel of one kind has.
var (
	controllers = map[Kind]string{
		KindUML:  "cpuset cpu io memory pids misc",
		KindQEMU: "cpuset cpu io memory hugetlb pids rdma misc",
	}
	hugePages = map[Kind]string{KindQEMU: "HugePages_Total:       2"}
)

func TestMachine(t *testing.T) {
	m := newMachine(t, nil)

	t.Run("is a node", func(t *testing.T) {
		for _, tc := range []struct{ what, script, want string }{
			{"systemd has started all", "systemctl is-system-running; systemctl --failed --no-legend", "running"},
			{"systemd is the first process", "cat /proc/1/comm", "systemd"},
			{"logind and D-Bus run", "systemctl is-active systemd-logind dbus", "active\nactive"},
			{"the hierarchy is cgroup v2", "stat -f -c %T /sys/fs/cgroup", "cgroup2fs"},
			{"its controllers", "cat /sys/fs/cgroup/cgroup.controllers", controllers[m.Kind()]},
			{"its huge pages", "sysctl -qw vm.nr_hugepages=2 2>/dev/null; grep HugePages_Total /proc/meminfo || true",
				hugePages[m.Kind()]},
			{"pressure is measured", "for r in cpu io memory; do grep -c some /proc/pressure/$r; done", "1\n1\n1"},
			{"AppArmor is on", "cat /sys/module/apparmor/parameters/enabled", "Y"},
			{"old iptables has NAT", "iptables-legacy -t nat -A PREROUTING -m addrtype --dst-type LOCAL -j RETURN && " +
				"iptables-legacy -t nat -S | grep -c addrtype", "1"},
			{"new iptables has NAT", "iptables-nft -t nat -A POSTROUTING -m comment --comment x -j MASQUERADE && iptables-nft " +
				"-t nat -S | grep -c MASQ", "1"},
			{"nftables", "nft add table inet t && nft list tables inet", "table inet t"},
			{"filesystems", "modprobe -aq nfs 2>/dev/null; grep -E -c '\\b(overlay|fuse|nfs4|tmpfs|ext4)$' /proc/filesystems",
				"5"},
			{"loop devices", "truncate -s 1M /tmp/l && d=$(losetup -f --show /tmp/l) && losetup -d $d && echo ok", "ok"},
			{"links", "ip link add d0 type dummy && ip link add v0 type veth peer name v1 && ip link add b0 type bridge && ls " +
				"-d /sys/class/net/[dvb]0 | wc -l", "3"},
			{"CPUs with a clock", "grep -c '^cpu MHz.*: [1-9]' /proc/cpuinfo", "2"},
			{"a user namespace may have /proc", "unshare -U -r -p -f --mount-proc true && echo ok", "ok"},
			{"the rig's containerd and runc", "containerd --version | cut -d' ' -f1; runc --version | head -1 | cut -d' ' " +
				"-f1; ls /opt/cni/bin | wc -l", "containerd\nrunc\n5"},
		} {
			if got := output(t, m, "sh", "-c", tc.script); got != tc.want {
				t.Errorf("%s: %q, want %q", tc.what, got, tc.want)
			}
		}
	})

	t.Run("keeps streams and exit codes apart", func(t *testing.T) {
		r, err := m.Run(t.Context(),
			Command{
				Args:  []string{"sh", "-c", `cat; echo "$1" >&2; exit 7`, "sh", "it's $HOME"},
				Input: strings.NewReader("in"),
			})
		if err != nil || string(r.Stdout) != "in" || string(r.Stderr) != "it's $HOME\n" || r.Code != 7 {
			t.Errorf("stdout %q, stderr %q, code %d, %v", r.Stdout, r.Stderr, r.Code, err)
		}
		if r, err := m.Run(t.Context(), Command{Args: []string{"sh", "-c", "kill -TERM $$"}}); err != nil ||
			r.Code != 128+15 {
			t.Errorf("a command that a signal killed: code %d, %v, want 143", r.Code, err)
		}
	})

	t.Run("kills a command at its deadline", func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer cancel()
		begin := time.Now()
		r, err := m.Run(ctx, Command{Args: []string{"sh", "-c", "echo begun; exec sleep 4711"}})
		if !errors.Is(err, context.DeadlineExceeded) || string(r.Stdout) != "begun\n" {
			t.Errorf("stdout %q, %v, want what was written until the deadline", r.Stdout, err)
		}
		if took := time.Since(begin); took > 6*patience(m) {
			t.Errorf("it took %s", took)
		}
		if got := output(t, m, "sh", "-c", "sleep 0.2; pgrep -xf 'sleep 4711' || echo gone"); got != "gone" {
			t.Errorf("the command goes on: %s", got)
		}
	})

	t.Run("runs several commands at once", func(t *testing.T) {
		// Each of them waits for all others.
		const together = `mkdir -p /run/at; touch "/run/at/$1"; until [ "$(ls /run/at | wc -l)" = 20 ]; do sleep 1; done`
		ctx, cancel := context.WithTimeout(t.Context(), 120*patience(m))
		defer cancel()
		done := make(chan error, 20)
		for i := range cap(done) {
			go func() {
				_, err := m.Run(ctx, Command{Args: []string{"sh", "-c", together, "sh", fmt.Sprint(i)}})
				done <- err
			}()
		}
		for range cap(done) {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
	})

	t.Run("copies", func(t *testing.T) {
		dir := t.TempDir()
		big := bytes.Repeat([]byte("0123456789abcdef"), 4<<20/16)
		if err := os.MkdirAll(filepath.Join(dir, "in/sub"), 0o755); err != nil {
			t.Fatal(err)
		}
		for name, mode := range map[string]os.FileMode{"in/a": 0o640, "in/sub/b": 0o755} {
			if err := os.WriteFile(filepath.Join(dir, name), big, mode); err != nil {
				t.Fatal(err)
			}
		}
		begin := time.Now()
		for _, step := range []error{
			m.CopyIn(t.Context(), filepath.Join(dir, "in"), "/srv/x/folder"),
			m.CopyIn(t.Context(), filepath.Join(dir, "in/sub/b"), "/srv/x/one"),
			m.CopyOut(t.Context(), "/srv/x/folder", filepath.Join(dir, "out")),
			m.CopyOut(t.Context(), "/srv/x/one", filepath.Join(dir, "back/one")),
		} {
			if step != nil {
				t.Error(step)
			}
		}
		t.Logf("24 MiB in %s", time.Since(begin).Round(time.Millisecond))
		for name, mode := range map[string]os.FileMode{"out/a": 0o640, "out/sub/b": 0o755, "back/one": 0o755} {
			path := filepath.Join(dir, name)
			text, err := os.ReadFile(path)
			if err != nil || !bytes.Equal(text, big) {
				t.Errorf("%s: %d bytes came back, %v", name, len(text), err)
				continue
			}
			if info, err := os.Stat(path); err != nil || info.Mode() != mode {
				t.Errorf("%s: %v, %v, want mode %v", name, info.Mode(), err, mode)
			}
		}
		if err := m.CopyOut(t.Context(), "/nowhere", filepath.Join(dir, "no")); err == nil {
			t.Error("a file that is not there was copied")
		}
	})

	t.Run("keeps its disk over a reboot, and its journal", func(t *testing.T) {
		if err := m.Write(t.Context(), "/srv/kept", []byte("kept"), 0o600); err != nil {
			t.Fatal(err)
		}
		output(t, m, "sh", "-c", "logger -t kept hello; journalctl --sync; touch /run/not-kept")
		before := output(t, m, "cat", "/proc/sys/kernel/random/boot_id")
		begin := time.Now()
		if err := m.Reboot(t.Context()); err != nil {
			t.Fatal(err)
		}
		t.Logf("rebooted in %s", time.Since(begin).Round(10*time.Millisecond))
		if after := output(t, m, "cat", "/proc/sys/kernel/random/boot_id"); after == before {
			t.Error("it is the same boot")
		}
		if got := output(t, m, "cat", "/srv/kept"); got != "kept" {
			t.Errorf("the file holds %q", got)
		}
		if got := output(t, m, "sh", "-c", "test -e /run/not-kept || echo gone"); got != "gone" {
			t.Error("/run was kept")
		}
		if got := output(t, m, "journalctl", "-b", "-1", "-t", "kept", "-o", "cat"); got != "hello" {
			t.Errorf("the journal of the boot before holds %q", got)
		}
	})

	t.Run("loses with its power what it had not written", func(t *testing.T) {
		output(t, m, "sh", "-c", "echo synced > /srv/synced; sync; echo lost > /srv/lost")
		if err := m.CutPower(t.Context()); err != nil {
			t.Fatal(err)
		}
		if m.Running() {
			t.Error("it runs without power")
		}
		if _, err := m.Run(t.Context(), Command{Args: []string{"true"}}); !errors.Is(err, ErrOff) {
			t.Errorf("a command without power: %v, want ErrOff", err)
		}
		begin := time.Now()
		if err := m.PowerOn(t.Context()); err != nil {
			t.Fatal(err)
		}
		t.Logf("started again in %s", time.Since(begin).Round(10*time.Millisecond))
		if got := output(t, m, "sh", "-c", "cat /srv/synced; cat /srv/lost 2>/dev/null || true"); got != "synced" {
			t.Errorf("the files hold %q, want only what was synced", got)
		}
	})
}
