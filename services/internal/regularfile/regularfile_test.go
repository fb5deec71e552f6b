package regularfile

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/microlet/microlet/services/internal/testing/linktest"
	"github.com/microlet/microlet/services/internal/testing/notregular"
)

type scene struct {
	dir  string
	root *os.Root
}

// newScene is a folder with files and links, and something outside of it.
func newScene(t *testing.T) scene {
	t.Helper()
	outer := t.TempDir()
	dir := filepath.Join(outer, "dir")
	in := func(name string) string { return filepath.Join(dir, name) }
	if err := errors.Join(os.MkdirAll(in("a/b"), 0o755), os.WriteFile(in("a/file"), []byte("text"), 0o600),
		os.WriteFile(filepath.Join(outer, "secret"), []byte("secret"), 0o600),
		os.Symlink("a/file", in("link")), os.Symlink("../file", in("a/b/up")), os.Symlink("a/b", in("folder")),
		os.Symlink("file", in("a/same")),
		os.Symlink("../secret", in("out")), os.Symlink(filepath.Join(outer, "secret"), in("absolute")),
		os.Symlink("loop", in("loop")), os.Symlink("none", in("dangling"))); err != nil {
		t.Fatal(err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { root.Close() })
	return scene{dir, root}
}

func (s scene) open(path string) (*os.File, error) { return Open(s.dir + "/" + path) }

// at opens it by its name in its folder, and without a link in the way.
func (s scene) at(path string) (*os.File, error) {
	dir, err := s.root.Open(filepath.Dir(path))
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	return At(dir, filepath.Base(path))
}

func (s scene) in(path string) (*os.File, error) { return In(s.root, path) }

func TestOpen(t *testing.T) {
	s := newScene(t)
	someError := errors.New("some error")
	for _, c := range []struct {
		path     string
		open, in error
	}{
		{"a/file", nil, nil}, {"folder/../file", nil, nil}, {"link", ErrNotRegular, nil},
		{"folder/../same", ErrNotRegular, nil},
		{"a/b/up", ErrNotRegular, nil}, {"folder/up", ErrNotRegular, nil}, {"a", ErrNotRegular, ErrNotRegular},
		{"none", fs.ErrNotExist, fs.ErrNotExist}, {"dangling", ErrNotRegular, fs.ErrNotExist},
		{"out", ErrNotRegular, someError}, {"absolute", ErrNotRegular, someError}, {"../secret", nil, someError},
		{"loop", ErrNotRegular, unix.ELOOP}, {"a/file/x", unix.ENOTDIR, someError},
	} {
		for way, got := range map[string]struct {
			open func(string) (*os.File, error)
			want error
		}{"Open": {s.open, c.open}, "In": {s.in, c.in}} {
			f, err := got.open(c.path)
			if err != nil {
				if got.want == nil || !errors.Is(got.want, someError) && !errors.Is(err, got.want) {
					t.Errorf("%s of %s: %v, want %v", way, c.path, err, got.want)
				}
				continue
			}
			text, err := io.ReadAll(f)
			if got.want != nil || err != nil || way == "In" && string(text) != "text" {
				t.Errorf("%s of %s: %q, %v", way, c.path, text, err)
			}
			f.Close()
		}
	}
}

func TestNothingElseIsOpened(t *testing.T) {
	s := newScene(t)
	if err := os.Symlink("special", filepath.Join(s.dir, "to")); err != nil {
		t.Fatal(err)
	}
	notregular.Each(t, filepath.Join(s.dir, "special"), func(t *testing.T) {
		for way, open := range map[string]func() (*os.File, error){
			"Open":          func() (*os.File, error) { return s.open("special") },
			"In":            func() (*os.File, error) { return s.in("special") },
			"At":            func() (*os.File, error) { return s.at("special") },
			"In, by a link": func() (*os.File, error) { return s.in("to") },
		} {
			if f, err := open(); !errors.Is(err, ErrNotRegular) {
				f.Close()
				t.Errorf("%s: %v", way, err)
			}
		}
	})
}

// TestADeviceIsNotOpenedInARace: a file and a device are exchanged as fast as can be.
func TestADeviceIsNotOpenedInARace(t *testing.T) {
	s := newScene(t)
	file, device := filepath.Join(s.dir, "a/file"), filepath.Join(s.dir, "device")
	if err := unix.Mknod(device, unix.S_IFCHR|0o666, int(unix.Mkdev(261, 7))); err != nil {
		t.Fatal(err)
	}
	defer linktest.Race(file, device)()
	opened, refused := 0, 0
	for i := 0; i < 3000 || opened == 0 || refused == 0; i++ {
		f, err := [...]func(string) (*os.File, error){s.open, s.in, s.at}[i%3]("a/file")
		switch {
		case err == nil:
			opened++
			f.Close()
		case errors.Is(err, ErrNotRegular):
			refused++
		case !errors.Is(err, fs.ErrNotExist):
			t.Fatal(err)
		}
	}
}

// TestALeaseIsNotWaitedFor: its holder has 45 s to give it up.
func TestALeaseIsNotWaitedFor(t *testing.T) {
	s := newScene(t)
	f, err := os.OpenFile(filepath.Join(s.dir, "a/file"), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_WRLCK); err != nil {
		t.Fatal(err)
	}
	if _, err := s.open("a/file"); !errors.Is(err, unix.EWOULDBLOCK) {
		t.Errorf("a file with a lease: %v", err)
	}
}
