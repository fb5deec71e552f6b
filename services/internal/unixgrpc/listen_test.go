package unixgrpc

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

func closedDir(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o750); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestListenSetsModeAndGroup(t *testing.T) {
	path := filepath.Join(closedDir(t), "s.sock")
	l, err := Listen(path, 0o660, os.Getegid())
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if got := info.Mode().Perm(); got != 0o660 {
		t.Errorf("mode is %o, want 660", got)
	}
	if st, ok := info.Sys().(*syscall.Stat_t); !ok || int(st.Gid) != os.Getegid() {
		t.Errorf("group is %v, want %d", st.Gid, os.Getegid())
	}
}

// TestListenWhereAnotherLocksTheFolder: the node's group may list a folder of sockets, and lock what it may open.
func TestListenWhereAnotherLocksTheFolder(t *testing.T) {
	dir := closedDir(t)
	folder, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer folder.Close()
	if err := unix.Flock(int(folder.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	l, err := Listen(filepath.Join(dir, "s.sock"), 0o660, -1)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		info, err := e.Info()
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode().IsRegular() && info.Mode().Perm() != 0o600 {
			t.Errorf("%s is a lock and has mode %o: others may lock it", e.Name(), info.Mode().Perm())
		}
	}
}

func TestListenReplacesADeadSocket(t *testing.T) {
	path := filepath.Join(closedDir(t), "s.sock")
	dead, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	dead.SetUnlinkOnClose(false) // as a server that was killed leaves it
	if err := dead.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(path); err != nil {
		t.Fatal("the test has no stale socket: ", err)
	}
	l, err := Listen(path, 0o660, -1)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	conn, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	_ = conn.Close()
}

func TestListenLeavesALivingServerAlone(t *testing.T) {
	path := filepath.Join(closedDir(t), "s.sock")
	first, err := Listen(path, 0o660, -1)
	if err != nil {
		t.Fatal(err)
	}
	defer first.Close()
	if _, err := Listen(path, 0o660, -1); !errors.Is(err, ErrInUse) {
		t.Errorf("second Listen is %v, want ErrInUse", err)
	}
	conn, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal("the first server lost its socket: ", err)
	}
	_ = conn.Close()
}

func TestListenRefusesWhatIsNotSafe(t *testing.T) {
	closed := closedDir(t)
	open := t.TempDir()
	if err := os.Chmod(open, 0o755); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(closed, "file")
	if err := os.WriteFile(file, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct{ path, says string }{
		"open folder": {filepath.Join(open, "s.sock"), "chmod o-rwx"},
		"file":        {file, "no socket"},
		"long path":   {filepath.Join(closed, strings.Repeat("x", 120)), "shorter --runtime-dir"},
		"no folder":   {filepath.Join(closed, "absent", "s.sock"), "no such file"},
	} {
		t.Run(name, func(t *testing.T) {
			l, err := Listen(c.path, 0o660, -1)
			if err == nil {
				_ = l.Close()
				t.Fatal("it listens")
			}
			if !strings.Contains(err.Error(), c.says) {
				t.Errorf("error is %q, want one that says %q", err, c.says)
			}
		})
	}
	if data, err := os.ReadFile(file); err != nil || string(data) != "precious" {
		t.Errorf("the file is %q, %v", data, err)
	}
}
