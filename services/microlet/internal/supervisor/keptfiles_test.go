package supervisor

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/microlet/microlet/services/internal/run"
)

// keptDirEnv names a folder with the FIFO that a child holds open, until there is a file "drop" in it.
const keptDirEnv = "SUPERVISOR_TEST_KEPT"

// keep has the supervisor keep an open FIFO, or says that it was given one.
func keep(ctx context.Context, n *run.Notifier) error {
	in, err := run.Inherited()
	if err != nil {
		return err
	}
	dir, status := os.Getenv(keptDirEnv), "inherited"
	f := in.Kept["fifo"]
	if f == nil {
		if f, err = os.OpenFile(filepath.Join(dir, "fifo"), os.O_WRONLY, 0); err != nil {
			return err
		}
		if err := n.Keep("fifo", f); err != nil {
			return err
		}
		status = "opened"
	}
	if err := n.Notify(run.NotifyReady, run.NotifyStatus+status); err != nil {
		return err
	}
	for ctx.Err() == nil {
		if _, err := os.Stat(filepath.Join(dir, "drop")); err == nil {
			if err := errors.Join(n.Drop("fifo"), f.Close(), n.Notify(run.NotifyStatus+"dropped")); err != nil {
				return err
			}
			break
		}
		time.Sleep(20 * time.Millisecond)
	}
	<-ctx.Done()
	return nil
}

// fifo is the reading end of what the child opens.
func fifo(t *testing.T, dir string) (closed func() bool) {
	t.Helper()
	path := filepath.Join(dir, "fifo")
	if err := unix.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	return func() bool {
		n, err := unix.Read(fd, make([]byte, 1))
		if err != nil && !errors.Is(err, unix.EAGAIN) {
			t.Fatal(err)
		}
		return n == 0 && err == nil
	}
}

func TestAFileIsKeptOverRestarts(t *testing.T) {
	dir := t.TempDir()
	closed := fifo(t, dir)
	s, _, _ := supervise(t, Spec{Name: "keep", KeptFiles: 1, Env: []string{keptDirEnv + "=" + dir}}, "keep", Options{})
	until(t, "the file", func() bool { return state(s).Status == "opened" })
	for restarts := 1; restarts <= 2; restarts++ {
		if err := syscall.Kill(state(s).PID, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		until(t, "the successor has it", func() bool {
			if closed() {
				t.Fatal("the file was closed between two processes")
			}
			p := state(s)
			return p.Restarts == restarts && p.State == Ready && p.Status == "inherited"
		})
	}
	if err := os.WriteFile(filepath.Join(dir, "drop"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	until(t, "the file is closed", closed)
}

func TestAProcessThatMayKeepNoFilesKeepsNone(t *testing.T) {
	dir := t.TempDir()
	fifo(t, dir)
	s, _, log := supervise(t, Spec{Name: "keep", Env: []string{keptDirEnv + "=" + dir}}, "keep", Options{})
	until(t, "ready", func() bool { return state(s).Status == "opened" })
	if err := syscall.Kill(state(s).PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	until(t, "ready again, with a file of its own", func() bool {
		p := state(s)
		return p.Restarts == 1 && p.Status == "opened"
	})
	if !strings.Contains(log.String(), "the process may keep no files") {
		t.Errorf("log:\n%s", log)
	}
}

func TestKeptFilesAreLimited(t *testing.T) {
	open := func() *os.File {
		f, err := os.Open(os.DevNull)
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	isClosed := func(f *os.File) bool { _, err := f.Stat(); return errors.Is(err, fs.ErrClosed) }
	k := &keptFiles{most: 1}
	first, second, third := open(), open(), open()
	for _, c := range []struct {
		datagram string
		file     *os.File
		want     string
	}{
		{"FDSTORE=1\nFDNAME=a:b", second, `FDNAME is "a:b"`},
		{"FDSTORE=1\nFDNAME=a", first, ""},
		{"FDSTORE=1\nFDNAME=b", third, "at most 1"},
		{"READY=1", open(), ""},
	} {
		n := parseNote(c.datagram)
		err := k.take(&n, []*os.File{c.file})
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%q: %v, want %q", c.datagram, err, c.want)
		}
		if kept := c.file == first; isClosed(c.file) == kept {
			t.Errorf("%q: kept is %t, want %t", c.datagram, !kept, kept)
		}
	}
	n := parseNote("FDSTOREREMOVE=1\nFDNAME=a")
	if err := k.take(&n, nil); err != nil || !isClosed(first) || len(k.files) != 0 {
		t.Errorf("after its removal: %v, %d files", err, len(k.files))
	}
}
