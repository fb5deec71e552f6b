package supervisor

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/microlet/microlet/services/internal/run"
	"github.com/microlet/microlet/services/internal/testing/proctest"
)

// touchEnv names a file that a child creates, in a thread of its own, if it is the first of its kind.
const touchEnv = "SUPERVISOR_TEST_TOUCH"

// touch is the life of a child of which one thread waits for a frozen file system.
func touch(ctx context.Context, n *run.Notifier) error {
	path := os.Getenv(touchEnv)
	if first, err := os.OpenFile(path+".first", os.O_CREATE|os.O_EXCL, 0o600); err == nil {
		_ = first.Close()
		go func() { _ = os.WriteFile(filepath.Join(path, "file"), nil, 0o600) }()
	}
	return serve(ctx, n)
}

// frozen is an ext4 on a loop device that nothing can be written to until thaw is called.
func frozen(t *testing.T) (dir string, thaw func()) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Fatal("run the tests as root: they mount and freeze a file system")
	}
	parent := t.TempDir()
	image, dir := filepath.Join(parent, "image"), filepath.Join(parent, "mnt")
	for _, args := range [][]string{
		{"truncate", "-s", "16M", image}, {"mkfs.ext4", "-q", image}, {"mkdir", dir}, {"mount", "-o", "loop", image, dir},
	} {
		if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v: %s (this test needs util-linux, e2fsprogs and loop devices)", strings.Join(args, " "),
				err, out)
		}
	}
	is := false
	freeze := func(want bool) {
		t.Helper()
		if is == want {
			return
		}
		how := map[bool]string{true: "--freeze", false: "--unfreeze"}[want]
		if out, err := exec.Command("fsfreeze", how, dir).CombinedOutput(); err != nil {
			t.Errorf("fsfreeze %s: %v: %s", how, err, out)
		}
		is = want
	}
	t.Cleanup(func() {
		freeze(false)
		// The process that wrote to it has to be gone.
		proctest.Await(t, waitLimit, "the unmount of "+dir, func() bool { return unix.Unmount(dir, 0) == nil })
	})
	freeze(true)
	return dir, func() { freeze(false) }
}

// TestAProcessHeldByAFrozenFileSystem kills a process of which the kernel does not let one thread go.
func TestAProcessHeldByAFrozenFileSystem(t *testing.T) {
	dir, thaw := frozen(t)
	s, _, log := supervise(t, Spec{Name: "p", Env: []string{touchEnv + "=" + dir}}, "touch",
		Options{Watchdog: 2 * time.Second})
	t.Cleanup(thaw) // before the supervisor's stop, which would wait for a process that it does not know to be stuck
	until(t, "READY", func() bool { return state(s).State == Ready })
	pid := state(s).PID
	until(t, "a thread that waits for the file system", func() bool {
		tasks, err := filepath.Glob("/proc/" + strconv.Itoa(pid) + "/task/*")
		if err != nil {
			t.Fatal(err)
		}
		for _, task := range tasks {
			if stateOf(task) == "D" {
				return true
			}
		}
		return false
	})
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	until(t, "a successor", func() bool { p := state(s); return p.State == Ready && p.PID != pid })
	p := state(s)
	if len(p.Stuck) != 1 || p.Stuck[0].PID != pid || !strings.Contains(p.Stuck[0].WaitsFor, "(state D) in ") ||
		p.Restarts != 1 {
		t.Errorf("account is %+v", p)
	}
	t.Logf("it is reported as: pid %d was killed and does not end: %s", pid, p.Stuck[0].WaitsFor)
	thaw()
	until(t, "the end of the one that was stuck", func() bool { return len(state(s).Stuck) == 0 })
	if again := state(s); again.PID != p.PID || again.State != Ready || again.Restarts != 1 {
		t.Errorf("the successor did not stay: %+v", again)
	}
	if !strings.Contains(log.String(), "does not end") {
		t.Errorf("the log does not say it:\n%s", log)
	}
}
