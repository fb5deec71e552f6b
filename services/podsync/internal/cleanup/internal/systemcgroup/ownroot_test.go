package systemcgroup

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	libcgroups "github.com/opencontainers/cgroups"
	"golang.org/x/sys/unix"

	"github.com/microlet/microlet/services/internal/testing/proctest"
)

const unifiedMount = "/sys/fs/cgroup"

// inOwnRoot runs the test in a process that sees its own cgroup as the root of each hierarchy, so that it sees and
// moves nothing of the machine. With unified, cgroup v2 is all there is, on a machine with cgroup v1 without its
// controllers.
func inOwnRoot(t *testing.T, unified bool, test func(t *testing.T)) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatal("needs root: it mounts cgroups")
	}
	if proctest.IsAgain() {
		mountOwnRoot(t, unified)
		test(t)
		return
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	var dirs []string
	for _, m := range hierarchies(t) {
		dir := makeCgroup(t, m, fmt.Sprintf("microlet-test-%d", os.Getpid()))
		t.Cleanup(func() { removeAll(t, dir) })
		dirs = append(dirs, dir)
	}
	enter := "for dir in " + strings.Join(dirs, " ") + "; do echo 0 > $dir/cgroup.procs; done\n" +
		`exec unshare --mount --cgroup -- "$@"`
	proctest.Again(t, exec.Command("sh", "-e", "-c", enter, "sh", self))
}

// hierarchies are all that are mounted.
func hierarchies(t *testing.T) []libcgroups.Mount {
	t.Helper()
	if isUnified(t, unifiedMount) {
		return []libcgroups.Mount{{Mountpoint: unifiedMount}}
	}
	all, err := libcgroups.GetCgroupMounts(true)
	if err != nil {
		t.Fatal(err)
	}
	if hybrid := filepath.Join(unifiedMount, "unified"); isUnified(t, hybrid) {
		all = append(all, libcgroups.Mount{Mountpoint: hybrid})
	}
	return all
}

func isUnified(t *testing.T, mount string) bool {
	t.Helper()
	var fs unix.Statfs_t
	if err := unix.Statfs(mount, &fs); err != nil && !os.IsNotExist(err) {
		t.Fatalf("statfs %s: %v", mount, err)
	}
	return fs.Type == unix.CGROUP2_SUPER_MAGIC
}

// mountOwnRoot mounts each hierarchy as the process's own cgroup namespace has it.
func mountOwnRoot(t *testing.T, unified bool) {
	t.Helper()
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		t.Fatal(err)
	}
	all := []libcgroups.Mount{{Mountpoint: unifiedMount}}
	if !unified {
		all = hierarchies(t)
	}
	for _, m := range all {
		kind, data := "cgroup", strings.Join(m.Subsystems, ",")
		switch data {
		case "":
			kind = "cgroup2"
		case "systemd":
			data = "none,name=systemd"
		}
		if err := unix.Unmount(m.Mountpoint, unix.MNT_DETACH); err != nil {
			t.Fatalf("unmount %s: %v", m.Mountpoint, err)
		}
		if err := unix.Mount(kind, m.Mountpoint, kind, 0, data); err != nil {
			t.Fatalf("mount %s %q at %s: %v", kind, data, m.Mountpoint, err)
		}
	}
}

// makeCgroup makes a cgroup below the root of a hierarchy, in which processes can be.
func makeCgroup(t *testing.T, m libcgroups.Mount, name string) string {
	t.Helper()
	dir := filepath.Join(m.Mountpoint, name)
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if !slices.Contains(m.Subsystems, "cpuset") {
		return dir
	}
	for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
		text, err := os.ReadFile(filepath.Join(m.Mountpoint, file))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, file), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// removeAll removes a cgroup with all below it.
func removeAll(t *testing.T, dir string) {
	t.Helper()
	var all []string
	err := filepath.WalkDir(dir, func(at string, d os.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			all = append(all, at)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
	for _, at := range slices.Backward(all) {
		if err := unix.Rmdir(at); err != nil {
			t.Errorf("remove cgroup %s: %v", at, err)
		}
	}
}
