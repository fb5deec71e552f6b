package test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/microlet/microlet/services/internal/testing/proctest"
)

// TestLockFile: the agent ends without an error when another process opens its lock file, which then has the lock. The
// next agent starts nothing before it is free.
func TestLockFile(t *testing.T) {
	a := newAgent(t)
	path := filepath.Join(a.dir, "kubelet.lock")
	a.args = []string{"--lock-file=" + path, "--exit-on-lock-contention"}
	a.start()
	a.await("all ready", ready)

	other, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := a.End(patience); err != nil {
		t.Errorf("microlet up ended with %v", err)
	}
	if err := unix.Flock(int(other.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		t.Fatalf("the lock is not free after the end: %v", err)
	}
	a.start()
	proctest.Await(t, patience, "the agent waits", func() bool {
		return strings.Contains(a.Log.String(), "lock file; waiting")
	})
	if rows, err := a.status(); err == nil {
		t.Errorf("the agent that waits runs %v", rows)
	}
	if err := other.Close(); err != nil {
		t.Fatal(err)
	}
	a.await("all ready with the lock", ready)
	a.stop()

	args := append([]string{"prepare"}, a.up()[1:]...)
	if out, err := proctest.Command(t.Context(), args...).CombinedOutput(); err == nil ||
		!strings.Contains(string(out), "use microlet up") {
		t.Errorf("microlet prepare with --lock-file: %v: %s", err, out)
	}
}
