package up

import (
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	libcgroups "github.com/opencontainers/cgroups"
	"golang.org/x/sys/unix"

	"github.com/microlet/microlet/services/internal/testing/cgrouptest"
)

const enterEnv = "MICROLET_TEST_ENTER_CGROUP"

func TestEnterCgroup(t *testing.T) { testEnterCgroup(t) }

func TestEnterCgroupOnUnified(t *testing.T) { cgrouptest.OnUnified(t, testEnterCgroup) }

// testEnterCgroup: what is started afterwards is in the cgroup, also where an earlier start has left cgroups below it.
func testEnterCgroup(t *testing.T) {
	if name := os.Getenv(enterEnv); name != "" { // the process cannot go back
		if err := moveTo("/" + name); err != nil {
			t.Fatal(err)
		}
		show := exec.Command("cat", "/proc/self/cgroup")
		show.Stdout = os.Stderr
		if err := show.Run(); err != nil {
			t.Fatal(err)
		}
		return
	}
	name := fmt.Sprintf("microlet-test-%d-%s", os.Getpid(), strings.ToLower(t.Name()))
	dirs := []string{filepath.Join(unifiedMount, name)}
	if !libcgroups.IsCgroup2UnifiedMode() {
		var err error
		if dirs, err = filepath.Glob("/sys/fs/cgroup/*"); err != nil {
			t.Fatal(err)
		}
		for i := range dirs {
			dirs[i] = filepath.Join(dirs[i], name)
		}
	}
	t.Cleanup(func() {
		for _, dir := range dirs {
			_ = os.Remove(filepath.Join(dir, "below")) // it is in one hierarchy at most
			if err := os.Remove(dir); err != nil && !os.IsNotExist(err) {
				t.Error(err)
			}
		}
	})
	for range 2 {
		self := exec.Command("/proc/self/exe", "-test.run=^TestEnterCgroup$")
		self.Env = append(os.Environ(), enterEnv+"="+name)
		out, err := self.CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		in := 0
		for _, line := range strings.Split(string(out), "\n") {
			if strings.HasSuffix(line, ":/"+name) {
				in++
			}
		}
		if in == 0 || !libcgroups.IsCgroup2UnifiedMode() && (!strings.Contains(string(out), "memory:/"+name) ||
			!strings.Contains(string(out), "cpu,cpuacct:/"+name) && !strings.Contains(string(out), "cpu:/"+name)) {
			t.Errorf("a program that is started is in\n%s", out)
		}
		if libcgroups.IsCgroup2UnifiedMode() {
			below := filepath.Join(dirs[0], "below")
			if err := os.Mkdir(below, 0o755); err != nil && !os.IsExist(err) {
				t.Fatal(err)
			}
			controllers, err := os.ReadFile(filepath.Join(dirs[0], "cgroup.controllers"))
			if err != nil {
				t.Fatal(err)
			}
			for _, c := range strings.Fields(string(controllers)) {
				if err := os.WriteFile(filepath.Join(dirs[0], "cgroup.subtree_control"), []byte("+"+c), 0); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
}

// Without the setting, and with one that cannot be, the process stays where it is.
func TestCgroupThatCannotBeEntered(t *testing.T) {
	before, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		t.Fatal(err)
	}
	var log strings.Builder
	for _, test := range []struct {
		name      string
		container bool
		err       error
		want      string
	}{
		{"", false, nil, ""},
		{"a\x00b", false, nil, "not moved into the cgroup of kubeletCgroups"},
		{"/a", true, nil, "kubeletCgroups has no effect in a container"},
		{"/a", false, os.ErrPermission, "permission denied"},
	} {
		log.Reset()
		enterCgroup(test.name, slog.New(slog.NewTextHandler(&log, nil)), func() (bool, error) {
			return test.container, test.err
		})
		if (test.want == "") != (log.Len() == 0) || !strings.Contains(log.String(), test.want) {
			t.Errorf("%+v logs %s", test, &log)
		}
	}
	if after, err := os.ReadFile("/proc/self/cgroup"); err != nil || string(after) != string(before) {
		t.Errorf("the process is in\n%s, %v, before\n%s", after, err, before)
	}
}

// TestACgroupOfAnotherProgram keeps the controllers of what is below it: the process stays where it is instead.
func TestACgroupOfAnotherProgram(t *testing.T) {
	cgrouptest.OnUnified(t, func(t *testing.T) {
		name := fmt.Sprintf("microlet-test-%d-foreign", os.Getpid())
		dir := filepath.Join(unifiedMount, name)
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := os.Remove(dir); err != nil {
				t.Error(err)
			}
		})
		file := filepath.Join(dir, "cgroup.subtree_control")
		controllers, err := os.ReadFile(filepath.Join(dir, "cgroup.controllers"))
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range strings.Fields(string(controllers)) {
			if err := os.WriteFile(file, []byte("+"+c), 0); err != nil {
				t.Fatal(err)
			}
		}
		before, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		self := exec.Command("/proc/self/exe", "-test.run=^TestEnterCgroup$")
		self.Env = append(os.Environ(), enterEnv+"="+name)
		out, _ := self.CombinedOutput() // it fails where there are controllers
		if after, err := os.ReadFile(file); err != nil || string(after) != string(before) {
			t.Errorf("below are the controllers %q, %v, before %q: %s", after, err, before, out)
		}
		if _, err := unix.Getxattr(dir, ownMark, nil); err == nil {
			t.Error("the cgroup is taken for the node agent's")
		}
	})
}
