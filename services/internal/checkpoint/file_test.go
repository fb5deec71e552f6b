package checkpoint

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/microlet/microlet/services/internal/regularfile"
	"github.com/microlet/microlet/services/internal/testing/notregular"
)

const limit = 1 << 20

func open(path string) *File { return New(path, formats["text"], limit) }

func content(n int) Content { return Content{Data: fmt.Appendf(nil, `{"n":%d}`, n)} }

// holds checks what a new process reads.
func holds(t *testing.T, path string, n int) {
	t.Helper()
	if c, err := open(path).Load(); err != nil || string(c.Data) != string(content(n).Data) {
		t.Errorf("the file holds %s, %v, want %d", c.Data, err, n)
	}
}

func inode(t *testing.T, path string) uint64 {
	t.Helper()
	info, err := os.Lstat(path)
	if err != nil {
		t.Fatal(err)
	}
	return info.Sys().(*syscall.Stat_t).Ino
}

func TestOneWriteAChange(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state")
	f := open(path)
	if _, err := f.Load(); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("without a file: %v", err)
	}
	for n := range 3 {
		if err := f.Store(content(n)); err != nil {
			t.Fatal(err)
		}
		holds(t, path, n)
		// Files that are replaced in turn may get the same number; one that is open keeps its own.
		kept, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer kept.Close()
		was := inode(t, path)
		again := open(path)
		_, err = again.Load()
		if err := errors.Join(err, f.Store(content(n)), again.Store(content(n))); err != nil {
			t.Fatal(err)
		}
		if inode(t, path) != was {
			t.Errorf("%d was written again", n)
		}
	}
	if info, err := os.Stat(path); err != nil || info.Mode() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
}

func TestOnlyRegularFilesAreRead(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "state")
	if err := errors.Join(open(filepath.Join(dir, "other")).Store(content(1)), os.Symlink("other", path)); err != nil {
		t.Fatal(err)
	}
	refused := func(t *testing.T) {
		t.Helper()
		f := open(path)
		_, err := f.Load()
		if !errors.Is(err, regularfile.ErrNotRegular) {
			t.Errorf("it is read: %v", err)
		}
		if err := f.SetAside(err); !errors.Is(err, regularfile.ErrNotRegular) {
			t.Errorf("set aside: %v", err)
		}
		if err := f.Store(content(2)); err != nil {
			t.Error(err)
		}
		holds(t, path, 2)
	}
	refused(t)
	holds(t, filepath.Join(dir, "other"), 1)
	notregular.Each(t, path, refused)
	if err := os.MkdirAll(filepath.Join(path, "below"), 0o700); err != nil {
		t.Fatal(err)
	}
	refused(t)
}

func TestALargeFileIsNotRead(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state")
	f := New(path, formats["text"], 64<<20)
	for size, want := range map[int64]string{
		64<<20 + 1: "it has 67108865 bytes, and at most 67108864 are read",
		1 << 50:    "it has 1125899906842624 bytes, and at most 67108864 are read",
		64 << 20:   "it is no JSON object",
	} {
		if err := errors.Join(os.WriteFile(path, nil, 0o600), os.Truncate(path, size)); err != nil {
			if size == 1<<50 {
				continue // not every file system has such files
			}
			t.Fatal(err)
		}
		if _, err := f.Load(); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%d bytes: %v, want %s", size, err, want)
		}
	}
	// Nor is one written.
	small := open(path)
	if err := small.Store(content(1)); err != nil {
		t.Fatal(err)
	}
	large := Content{Data: []byte(strings.Repeat(" ", limit))}
	if err := small.Store(large); err == nil || !strings.Contains(err.Error(), "at most 1048576 are read") {
		t.Errorf("a large one: %v", err)
	}
	holds(t, path, 1)
}

func TestSetAside(t *testing.T) {
	because := errors.New("it is bad")
	for name, older := range map[string]func(string) error{
		"nothing":  func(string) error { return nil },
		"a file":   func(path string) error { return os.WriteFile(path, []byte("older"), 0o600) },
		"a folder": func(path string) error { return os.MkdirAll(filepath.Join(path, "below"), 0o700) },
		"a link":   func(path string) error { return os.Symlink("none", path) },
	} {
		path := filepath.Join(t.TempDir(), "state")
		if err := errors.Join(older(path+".bad"), os.WriteFile(path, []byte("bad"), 0o600)); err != nil {
			t.Fatal(err)
		}
		f := open(path)
		err := f.SetAside(because)
		if want := fmt.Sprintf("%s cannot be used, and is %s.bad now: it is bad", path, path); err.Error() != want {
			t.Errorf("%s was there: %v, want %s", name, err, want)
		}
		if text, err := os.ReadFile(path + ".bad"); err != nil || string(text) != "bad" {
			t.Errorf("%s was there: %q is aside, %v", name, text, err)
		}
		if _, err := f.Load(); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s was there: the file is still there: %v", name, err)
		}
	}
	path := filepath.Join(t.TempDir(), "none", "state")
	if err := open(path).SetAside(because); !errors.Is(err, because) || !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("without a file: %v", err)
	}
}

// disk returns a folder on a file system of its own, with the options.
func disk(t *testing.T, options string) string {
	t.Helper()
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, options); err != nil {
		t.Fatalf("run the tests as root: %v", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	return dir
}

func TestAFullDiskKeepsTheOldFile(t *testing.T) {
	dir := disk(t, "size=64k")
	path, filler := filepath.Join(dir, "state"), filepath.Join(dir, "filler")
	f := open(path)
	if err := f.Store(content(1)); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filler, make([]byte, 1<<20), 0o600); !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("the disk is not full: %v", err)
	}
	if err := f.Store(content(2)); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("on a full disk: %v", err)
	}
	holds(t, path, 1)
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 1 {
		t.Errorf("the folder has %v, %v", entries, err)
	}
	if err := f.Store(content(2)); err != nil {
		t.Error(err)
	}
	holds(t, path, 2)
}

func TestAReadOnlyDisk(t *testing.T) {
	dir := disk(t, "")
	path := filepath.Join(dir, "state")
	f := open(path)
	if err := f.Store(content(1)); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
		t.Fatal(err)
	}
	if err := f.Store(content(2)); !errors.Is(err, unix.EROFS) {
		t.Errorf("%v", err)
	}
	if err := f.SetAside(fs.ErrInvalid); !errors.Is(err, unix.EROFS) || !errors.Is(err, fs.ErrInvalid) {
		t.Errorf("set aside: %v", err)
	}
	holds(t, path, 1)
	if err := unix.Mount("", dir, "", unix.MS_REMOUNT, ""); err != nil {
		t.Fatal(err)
	}
	// It is not known what the disk has, so that the old content is written as well.
	was := inode(t, path)
	if err := f.Store(content(1)); err != nil {
		t.Fatal(err)
	}
	if inode(t, path) == was {
		t.Error("the content of before was not written")
	}
}

// TestACrashLeavesTheOldFile: a process was killed before the new file had its name, as often as can be.
func TestACrashLeavesTheOldFile(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "state")
	if err := open(path).Store(content(0)); err != nil {
		t.Fatal(err)
	}
	for n, part := range []string{"", `{"data":"{\"n`, files["text"]} {
		if err := os.WriteFile(filepath.Join(dir, ".new-state"), []byte(part), 0o600); err != nil {
			t.Fatal(err)
		}
		holds(t, path, n)
		if err := open(path).Store(content(n + 1)); err != nil {
			t.Fatal(err)
		}
		holds(t, path, n+1)
		if entries, err := os.ReadDir(dir); err != nil || len(entries) != 1 {
			t.Errorf("the folder has %v, %v", entries, err)
		}
	}
}
