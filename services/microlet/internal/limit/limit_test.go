package limit

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	libcgroups "github.com/opencontainers/cgroups"

	"github.com/microlet/microlet/services/internal/peer"
	"github.com/microlet/microlet/services/internal/testing/proctest"
)

// hungry names the variable that makes this test a process that takes more and more memory.
const hungry = "MICROLET_TEST_HUNGRY"

// mebibytes is how much it takes. The race detector takes several times as much beside it.
const mebibytes = 128

func TestMain(m *testing.M) {
	if os.Getenv(hungry) != "" {
		var all [][]byte
		for range mebibytes {
			page := make([]byte, 1<<20)
			for i := range page {
				page[i] = byte(i)
			}
			all = append(all, page)
		}
		os.Exit(len(all) - mebibytes) // they were there for it
	}
	os.Exit(m.Run())
}

// begin starts a command in the group. It waits for a line, which goOn writes, so that it takes nothing before it is
// where it belongs.
func begin(t *testing.T, g *Group, cmd *exec.Cmd) (goOn func()) {
	t.Helper()
	cmd.SysProcAttr = &syscall.SysProcAttr{}
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	leave, err := g.Enter(cmd.SysProcAttr)
	if err != nil {
		t.Fatal(err)
	}
	err = cmd.Start()
	leave()
	if err != nil {
		t.Fatal(err)
	}
	if err := g.Add(cmd.Process.Pid); err != nil {
		t.Error(err)
	}
	return func() {
		t.Helper()
		if _, err := in.Write([]byte("\n")); err != nil {
			t.Fatal(err)
		}
	}
}

// start runs the hungry process in the group and says how it ends.
func start(t *testing.T, g *Group) error {
	t.Helper()
	cmd := exec.Command("/bin/sh", "-c", "read line; exec /proc/self/fd/3 -test.run=none")
	program, err := os.Open("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	defer program.Close()
	cmd.ExtraFiles = []*os.File{program}
	cmd.Env = append(os.Environ(), hungry+"=1")
	goOn := begin(t, g, cmd)
	text, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(cmd.Process.Pid), "cgroup"))
	if err != nil || !strings.Contains(string(text), filepath.Base(g.dirs[0])) {
		t.Errorf("the process lives in %s, %v, not in %s", text, err, g.dirs)
	}
	goOn()
	return cmd.Wait()
}

// A process that takes more than its limit is killed, and its successor lives in the same cgroup.
func TestLimitKills(t *testing.T) {
	if os.Getuid() != 0 {
		t.Fatal("run the tests as root: they make cgroups")
	}
	c, err := New(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	g, err := c.Make("stats", Limits{Memory: 64 << 20, Tasks: 100})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := g.Remove(); err != nil {
			t.Error(err)
		}
	})
	for range 2 {
		err := start(t, g)
		var ended *exec.ExitError
		if !errors.As(err, &ended) || ended.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
			t.Fatalf("a process with twice its limit ends with %v", err)
		}
	}
	again, err := c.Make("stats", Limits{Memory: 4 << 30, Tasks: 100})
	if err != nil || !slices.Equal(again.dirs, g.dirs) {
		t.Errorf("the cgroup is made again: %v, %v", again, err)
	}
	if err := start(t, g); err != nil {
		t.Errorf("a process within its new limit ends with %v", err)
	}
}

// A process that starts more processes than it may gets no further one.
func TestLimitOfTasks(t *testing.T) {
	if os.Getuid() != 0 {
		t.Fatal("run the tests as root: they make cgroups")
	}
	c, err := New(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	g, err := c.Make("prober", Limits{Memory: 1 << 30, Tasks: 5})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		proctest.Await(t, time.Minute, "the removal of the cgroup", func() bool { return g.Remove() == nil })
	})
	cmd := exec.Command("/bin/sh", "-c", "read line; for i in 1 2 3 4 5 6 7 8; do sleep 1000 & done")
	stderr, err := os.Create(filepath.Join(t.TempDir(), "stderr"))
	if err != nil {
		t.Fatal(err)
	}
	defer stderr.Close()
	cmd.Stderr = stderr
	goOn := begin(t, g, cmd)
	for _, dir := range g.dirs {
		if left, err := os.ReadFile(filepath.Join(dir, "cgroup.procs")); err != nil || len(left) == 0 {
			t.Errorf("%s has processes %q, %v", dir, left, err)
		}
	}
	goOn()
	ended := cmd.Wait()
	said, err := os.ReadFile(stderr.Name())
	if err != nil || ended == nil || !strings.Contains(string(said), "fork") {
		t.Errorf("eight more processes where five may be: %v, %q, %v", ended, said, err)
	}
	pids, err := os.ReadFile(filepath.Join(g.dirs[len(g.dirs)-1], "cgroup.procs"))
	if err != nil {
		t.Fatal(err)
	}
	for _, pid := range strings.Fields(string(pids)) {
		if n, err := strconv.Atoi(pid); err == nil {
			_ = syscall.Kill(n, syscall.SIGKILL)
		}
	}
}

// All threads of a process compete for the processors as one that has the niceness of the process.
func TestWeight(t *testing.T) {
	if os.Getuid() != 0 {
		t.Fatal("run the tests as root: they make cgroups")
	}
	c, err := New(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for nice, want := range map[int]map[bool]string{0: {false: "1024", true: "0"}, 10: {false: "109", true: "10"}} {
		g, err := c.Make("stats", Limits{Memory: 1 << 30, Tasks: 100, Nice: nice})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			proctest.Await(t, time.Minute, "the removal of the cgroup", func() bool { return g.Remove() == nil })
		})
		cmd := exec.Command("/bin/sh", "-c", "read line")
		goOn := begin(t, g, cmd)
		in, err := libcgroups.ParseCgroupFile("/proc/" + strconv.Itoa(cmd.Process.Pid) + "/cgroup")
		if err != nil {
			t.Error(err)
		}
		file := filepath.Join(unifiedMount, in[""], "cpu.weight.nice")
		if !c.unified {
			mount, err := libcgroups.FindCgroupMountpoint("", "cpu")
			if err != nil {
				t.Error(err)
			}
			file = filepath.Join(mount, in["cpu"], "cpu.shares")
		}
		got, err := os.ReadFile(file)
		if strings.TrimSpace(string(got)) != want[c.unified] || !strings.Contains(file, "-stats/") {
			t.Errorf("%s has %q, %v, want %s", file, got, err, want[c.unified])
		}
		goOn()
		if err := cmd.Wait(); err != nil {
			t.Error(err)
		}
	}
}

func TestNamesAreTheInstances(t *testing.T) {
	one, err := New("/run/one")
	if err != nil {
		t.Fatal(err)
	}
	two, err := New("/run/two")
	if err != nil {
		t.Fatal(err)
	}
	if one.dir != two.dir || one.instance == two.instance {
		t.Errorf("two instances are %+v and %+v", one, two)
	}
	at := filepath.Join("/a/b", peer.LimitedCgroup+"-"+one.instance+"-stats")
	if got := peer.InstanceCgroup(at); got != "/a/b" {
		t.Errorf("the instance of %s lives in %s", at, got)
	}
}

// The root of a container's cgroup namespace is not that of the hierarchy.
func TestIsRoot(t *testing.T) {
	dir := t.TempDir()
	if !isRoot(dir) {
		t.Error("a cgroup without a type is not the root")
	}
	if err := os.WriteFile(filepath.Join(dir, "cgroup.type"), []byte("domain\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if isRoot(dir) {
		t.Error("a cgroup with a type is the root")
	}
}

// Kill ends all processes, whatever session they are in, and the cgroup can be used again.
func TestKill(t *testing.T) {
	if os.Getuid() != 0 {
		t.Fatal("run the tests as root: they make cgroups")
	}
	c, err := New(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for name, byKernel := range map[string]bool{"bus": c.unified, "pleg": false} {
		g, err := c.Make(name, Limits{Memory: 1 << 30, Tasks: 50})
		if err != nil {
			t.Fatal(err)
		}
		g.unified = byKernel // otherwise the processes are killed one by one
		t.Cleanup(func() {
			proctest.Await(t, time.Minute, "the removal of the cgroup", func() bool { return g.Remove() == nil })
		})
		for range 2 {
			// It fills the cgroup.
			cmd := exec.Command("/bin/sh", "-c", "read line; while :; do setsid sleep 1000 & done")
			in, err := cmd.StdinPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			for _, dir := range g.dirs {
				if err := write(dir, "cgroup.procs", strconv.Itoa(cmd.Process.Pid)); err != nil {
					t.Fatal(err)
				}
			}
			if _, err := in.Write([]byte("\n")); err != nil {
				t.Fatal(err)
			}
			proctest.Await(t, time.Minute, "daemons", func() bool {
				pids, err := processes(g.dirs[0])
				return err == nil && len(pids) > 40
			})
			if err := g.Kill(); err != nil {
				t.Error(err)
			}
			_ = cmd.Wait() // it was killed
			proctest.Await(t, time.Minute, "the end of all", func() bool {
				left, err := os.ReadFile(filepath.Join(g.dirs[len(g.dirs)-1], "pids.current"))
				return err == nil && string(left) == "0\n"
			})
		}
		if err := start(t, g); err != nil {
			t.Errorf("a process after that: %v", err)
		}
	}
}
