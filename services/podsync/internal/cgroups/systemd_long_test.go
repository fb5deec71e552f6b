//go:build long

package cgroups

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/microlet/microlet/services/internal/testing/proctest"
)

const systemdInit = "/lib/systemd/systemd"

// TestOnSystemd goes the whole way with a systemd of its own, which is the first process of a
// namespace and rules a cgroup v2 tree below a cgroup of this test alone.
func TestOnSystemd(t *testing.T) {
	if proctest.IsAgain() {
		goTheWholeWay(t, Options{Driver: DriverSystemd, PerQOS: true, CPUCFSQuota: true},
			"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podaaaa_1.slice")
		return
	}
	if os.Geteuid() != 0 {
		t.Fatal("needs root: it boots a systemd")
	}
	pid := bootSystemd(t)
	own, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	proctest.Again(t, exec.Command("nsenter", "--target", strconv.Itoa(pid), "--mount", "--pid", "--cgroup", own))
}

// bootSystemd returns the process id of a systemd that answers.
func bootSystemd(t *testing.T) int {
	t.Helper()
	mount := unifiedMount
	if !Unified() {
		mount = t.TempDir()
		if err := unix.Mount("cgroup2", mount, "cgroup2", 0, ""); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := unix.Unmount(mount, 0); err != nil {
				t.Error(err)
			}
		})
	}
	of := filepath.Join(mount, "microlet-test-systemd-"+strconv.Itoa(os.Getpid()))
	if err := os.Mkdir(of, 0o755); err != nil {
		t.Fatal(err)
	}
	const boot = `set -e
echo $$ > "$0/cgroup.procs"
exec unshare --cgroup bash -c '
mount --make-rprivate /
mount -t proc proc /proc
umount -R /sys/fs/cgroup
mount -t cgroup2 cgroup2 /sys/fs/cgroup
mount -t tmpfs tmpfs /run
container=microlet-test exec ` + systemdInit + ` --system --unit=rescue.target'`
	systemd := exec.Command("bash", "-c", boot, of)
	systemd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWPID | syscall.CLONE_NEWUTS | syscall.CLONE_NEWIPC,
		Pdeathsig:  syscall.SIGKILL,
	}
	if err := systemd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = systemd.Process.Kill() // with the first process its namespace ends
		_ = systemd.Wait()
		removeTree(t, of)
	})
	socket := "/proc/" + strconv.Itoa(systemd.Process.Pid) + "/root/run/systemd/private"
	proctest.Await(t, 10*time.Second, "systemd listens", func() bool {
		_, err := os.Stat(socket)
		return err == nil
	})
	return systemd.Process.Pid
}

// removeTree removes cgroups from the leaves up, once their processes have gone.
func removeTree(t *testing.T, root string) {
	t.Helper()
	var dirs []string
	_ = filepath.WalkDir(root, func(path string, d os.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			dirs = append(dirs, path)
		}
		return nil
	})
	for i := len(dirs) - 1; i >= 0; i-- {
		proctest.Await(t, 5*time.Second, "cgroup "+dirs[i]+" can be removed", func() bool {
			err := os.Remove(dirs[i])
			return err == nil || os.IsNotExist(err)
		})
	}
}
