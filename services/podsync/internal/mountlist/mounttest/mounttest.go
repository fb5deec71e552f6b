// Package mounttest gives tests mounts that end with them.
package mounttest

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// ownMounts is the environment variable that is set in a test with a mount namespace of its own.
const ownMounts = "MICROLET_TEST_MOUNTS"

// WithOwnMounts runs the test once more in a mount namespace of its own, without shared mounts.
func WithOwnMounts(t *testing.T, test func(t *testing.T)) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatal("needs root: it mounts")
	}
	if os.Getenv(ownMounts) != "" {
		if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
			t.Fatal(err)
		}
		test(t)
		return
	}
	again := exec.Command("/proc/self/exe", "-test.run=^"+t.Name()+"$", "-test.v") //nolint:gosec // its own name
	again.Env = append(os.Environ(), ownMounts+"=1")
	again.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	out, err := again.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "--- PASS: "+t.Name()) {
		t.Fatalf("in a mount namespace of its own: %v\n%s", err, out)
	}
}

// ResolvedTempDir is a folder of the test whose path has no link.
func ResolvedTempDir(t *testing.T) string {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// Tmpfs mounts a small tmpfs on a folder, which it makes.
func Tmpfs(t *testing.T, dir string) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o750); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=64k"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
}
