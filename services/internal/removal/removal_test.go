package removal

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/microlet/microlet/services/internal/samemount"
	"github.com/microlet/microlet/services/internal/testing/linktest"
)

// nest makes folders in one another, deeper than any path can say, each with a file in it.
func nest(t *testing.T, dir string, depth int) {
	t.Helper()
	name := strings.Repeat("d", 200)
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		t.Fatal(err)
	}
	for range depth {
		file, err := unix.Openat(fd, "file", unix.O_CREAT|unix.O_WRONLY, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(unix.Close(file), unix.Mkdirat(fd, name, 0o700)); err != nil {
			t.Fatal(err)
		}
		next, err := unix.Openat(fd, name, unix.O_PATH|unix.O_DIRECTORY, 0)
		if err := errors.Join(err, unix.Close(fd)); err != nil {
			t.Fatal(err)
		}
		fd = next
	}
	if err := unix.Close(fd); err != nil {
		t.Fatal(err)
	}
}

// openers are both ways to open a folder: what this kernel does not need, an older one does.
var openers = map[string]func(int, string) (int, error){"openat2": samemount.Open, "openat": samemount.OpenComparing}

func removeWith(open func(int, string) (int, error), path string, beforeDescent func(string)) error {
	parent, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	defer parent.Close()
	t := &tree{ctx: context.Background(), path: path, open: open, beforeDescent: beforeDescent}
	return t.remove(int(parent.Fd()), filepath.Base(path))
}

func isGone(t *testing.T, path string) {
	t.Helper()
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%s is still there: %v", path, err)
	}
}

func TestTreeBeyondTheLongestPath(t *testing.T) {
	const depth = 300 // of 200 letters each: 15 times PATH_MAX, and more than files may be open
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 100, Max: limit.Max}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Setrlimit(unix.RLIMIT_NOFILE, &limit) })
	for name, open := range openers {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "pod")
			if err := os.Mkdir(dir, 0o700); err != nil {
				t.Fatal(err)
			}
			nest(t, dir, depth)
			before, err := os.ReadDir("/proc/self/fd")
			if err != nil {
				t.Fatal(err)
			}
			if err := removeWith(open, dir, nil); err != nil {
				t.Fatal(err)
			}
			isGone(t, dir)
			if after, err := os.ReadDir("/proc/self/fd"); err != nil || len(after) > len(before) {
				t.Errorf("%d files are open, %d were before (%v)", len(after), len(before), err)
			}
		})
	}
}

func TestTreeOfManyNames(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "pod")
	for i := range 30 {
		if err := os.MkdirAll(filepath.Join(dir, fmt.Sprint(i), "below"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 2 * namesAtOnce {
		if err := os.WriteFile(filepath.Join(dir, "7", strings.Repeat("f", 100)+fmt.Sprint(i)), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(os.Symlink("/", filepath.Join(dir, "link")),
		unix.Mkfifo(filepath.Join(dir, "fifo"), 0o600)); err != nil {
		t.Fatal(err)
	}
	for range 2 { // what is gone is success
		if err := Tree(t.Context(), dir); err != nil {
			t.Fatal(err)
		}
		isGone(t, dir)
	}
}

func TestTreeTakesALinkAndNotWhereItLeads(t *testing.T) {
	dir := t.TempDir()
	outside := filepath.Join(dir, "outside")
	if err := errors.Join(os.MkdirAll(filepath.Join(outside, "sub"), 0o700),
		os.Symlink(outside, filepath.Join(dir, "pod"))); err != nil {
		t.Fatal(err)
	}
	if err := Tree(t.Context(), filepath.Join(dir, "pod")); err != nil {
		t.Fatal(err)
	}
	isGone(t, filepath.Join(dir, "pod"))
	if _, err := os.Stat(filepath.Join(outside, "sub")); err != nil {
		t.Error(err)
	}
	for _, path := range []string{"", "/", dir + "/..", "."} {
		if err := Tree(t.Context(), path); err == nil {
			t.Errorf("%q was taken for a folder to remove", path)
		}
	}
}

// TestTreeAgainstALinkInTheWay exchanges each folder for a link in the moment between the look at it and the
// descent into it.
func TestTreeAgainstALinkInTheWay(t *testing.T) {
	for name, open := range openers {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			pod, outside := filepath.Join(dir, "pod"), filepath.Join(dir, "outside")
			precious := filepath.Join(outside, "precious")
			if err := errors.Join(os.MkdirAll(filepath.Join(pod, "sub", "x"), 0o700), os.Mkdir(outside, 0o700),
				os.WriteFile(precious, nil, 0o600)); err != nil {
				t.Fatal(err)
			}
			swapped := 0
			err := removeWith(open, pod, func(name string) {
				if name == "sub" {
					swapped++
					if err := errors.Join(os.Rename(filepath.Join(pod, name), filepath.Join(pod, "aside")),
						os.Symlink(outside, filepath.Join(pod, name))); err != nil {
						t.Error(err)
					}
				}
			})
			if err != nil || swapped != 1 {
				t.Errorf("%v, exchanged %d times", err, swapped)
			}
			isGone(t, pod)
			if _, err := os.Stat(precious); err != nil {
				t.Errorf("the removal followed a link: %v", err)
			}
		})
	}
}

// TestTreeAgainstARacingLink does the same as fast as a container can.
func TestTreeAgainstARacingLink(t *testing.T) {
	dir := t.TempDir()
	outside := filepath.Join(dir, "outside")
	precious := filepath.Join(outside, "precious")
	if err := errors.Join(os.Mkdir(outside, 0o700), os.WriteFile(precious, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	pod := filepath.Join(dir, "pod")
	folder, link := filepath.Join(pod, "folder"), filepath.Join(pod, "link")
	stop := linktest.Race(folder, link)
	for range 200 {
		if err := errors.Join(os.MkdirAll(filepath.Join(folder, "a", "b"), 0o700), os.Symlink(outside, link)); err != nil &&
			!errors.Is(err, fs.ErrExist) {
			t.Fatal(err)
		}
		if err := Tree(t.Context(), pod); err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(precious); err != nil {
			t.Fatalf("the removal followed a link: %v", err)
		}
	}
	stop()
}

// TestTreeThatIsMovedMeanwhile: what a folder was moved to is not taken for the folder above it.
func TestTreeThatIsMovedMeanwhile(t *testing.T) {
	dir := t.TempDir()
	pod, outside := filepath.Join(dir, "pod"), filepath.Join(dir, "outside")
	if err := errors.Join(os.MkdirAll(filepath.Join(pod, "a", "b"), 0o700),
		os.MkdirAll(filepath.Join(outside, "b-was-here"), 0o700)); err != nil {
		t.Fatal(err)
	}
	err := removeWith(samemount.Open, pod, func(name string) {
		if name == "b" {
			if err := os.Rename(filepath.Join(pod, "a"), filepath.Join(outside, "a")); err != nil {
				t.Error(err)
			}
		}
	})
	if err == nil || !strings.Contains(err.Error(), "moved meanwhile") {
		t.Errorf("%v", err)
	}
	if _, err := os.Stat(filepath.Join(outside, "b-was-here")); err != nil {
		t.Error(err)
	}
}

// TestTreeStopsAtMounts: also at those of the same file system, which have the same device.
func TestTreeStopsAtMounts(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Fatal("needs root: it mounts")
	}
	for name, open := range openers {
		for kind, makePoint := range map[string]func(path string) error{
			"folder": func(path string) error { return os.Mkdir(path, 0o700) },
			"file":   func(path string) error { return os.WriteFile(path, nil, 0o600) },
		} {
			t.Run(name+" "+kind, func(t *testing.T) {
				dir := t.TempDir()
				data, pod := filepath.Join(dir, "data"), filepath.Join(dir, "pod")
				point := filepath.Join(pod, "sub", "mounted")
				if err := errors.Join(os.MkdirAll(filepath.Dir(point), 0o700), makePoint(data), makePoint(point)); err != nil {
					t.Fatal(err)
				}
				precious := data
				if kind == "folder" {
					precious = filepath.Join(data, "precious")
					if err := os.WriteFile(precious, nil, 0o600); err != nil {
						t.Fatal(err)
					}
				}
				if err := unix.Mount(data, point, "", unix.MS_BIND, ""); err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { _ = unix.Unmount(point, unix.MNT_DETACH) })
				err := removeWith(open, pod, nil)
				if err == nil || !strings.Contains(err.Error(), point) ||
					!strings.Contains(err.Error(), "mount point") {
					t.Errorf("%v: it must name the mount point %s", err, point)
				}
				if _, err := os.Stat(precious); err != nil {
					t.Errorf("what was mounted lost its content: %v", err)
				}
				if err := unix.Unmount(point, 0); err != nil {
					t.Errorf("it is not mounted any more: %v", err)
				}
				if err := removeWith(open, pod, nil); err != nil {
					t.Error(err)
				}
				isGone(t, pod)
			})
		}
	}
}

func TestTreeEndsWithItsContext(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "pod")
	if err := os.MkdirAll(filepath.Join(dir, "a"), 0o700); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	enough := errors.New("enough")
	cancel(enough)
	if err := Tree(ctx, dir); !errors.Is(err, enough) {
		t.Errorf("%v", err)
	}
	if err := Tree(t.Context(), dir); err != nil {
		t.Error(err)
	}
	isGone(t, dir)
}
