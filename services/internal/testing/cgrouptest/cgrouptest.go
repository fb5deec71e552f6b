// Package cgrouptest runs tests where cgroup v2 is mounted as servers have it.
package cgrouptest

import (
	"os"
	"os/exec"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/microlet/microlet/services/internal/testing/proctest"
)

const mount = "/sys/fs/cgroup"

// OnUnified runs the test where cgroup v2 is all there is. On a machine with cgroup v1 that is a mount namespace of
// another process's, in which v2 has those controllers that v1 does not use. It needs root.
func OnUnified(t *testing.T, test func(t *testing.T)) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatal("needs root: it mounts cgroup v2")
	}
	if proctest.IsAgain() {
		mountUnified(t)
		test(t)
		return
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(mount, &fs); err != nil {
		t.Fatalf("statfs %s: %v", mount, err)
	}
	if fs.Type == unix.CGROUP2_SUPER_MAGIC {
		test(t)
		return
	}
	again := exec.Command("/proc/self/exe")
	again.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	proctest.Again(t, again)
}

func mountUnified(t *testing.T) {
	t.Helper()
	for _, err := range []error{
		unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""),
		unix.Unmount(mount, unix.MNT_DETACH),
		unix.Mount("cgroup2", mount, "cgroup2", 0, ""),
	} {
		if err != nil {
			t.Fatalf("mount cgroup v2: %v", err)
		}
	}
}
