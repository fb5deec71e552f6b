package volumes

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/microlet/microlet/services/internal/testing/linktest"
)

// scene is a volume with something outside of it that no container may get.
type scene struct {
	m               *Manager
	volume, outside string
}

func newScene(t *testing.T) scene {
	t.Helper()
	m := realManager(t, &api{}, "100Mi")
	dir := t.TempDir()
	s := scene{m, filepath.Join(dir, "volume"), filepath.Join(dir, "outside")}
	for _, d := range []string{s.volume, s.outside} {
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(os.Chmod(s.volume, 0o777|fs.ModeSetgid),
		os.WriteFile(filepath.Join(s.outside, "secret"), []byte("secret"), 0o600)); err != nil {
		t.Fatal(err)
	}
	return s
}

func (s scene) bind(t *testing.T, path string, index int) (string, error) {
	return s.m.SubPath(t.Context(),
		SubPath{Pod: podWith(), Volume: "v", Container: "c", Index: index, Root: s.volume, Path: path})
}

func TestSubPathIsMadeAndBound(t *testing.T) {
	s := newScene(t)
	target, err := s.bind(t, "a/b", 0)
	if err != nil {
		t.Fatal(err)
	}
	if want := filepath.Join(s.m.podDir("u1"), "volume-subpaths/v/c/0"); target != want {
		t.Errorf("bound at %s, the kubelet's place is %s", target, want)
	}
	for _, made := range []string{"a", "a/b"} {
		info, err := os.Stat(filepath.Join(s.volume, made))
		if err != nil || info.Mode() != fs.ModeDir|fs.ModeSetgid|0o777 {
			t.Errorf("%s: %v, %v: the volume's users cannot write there", made, info.Mode(), err)
		}
	}
	if err := os.WriteFile(filepath.Join(s.volume, "a/b/f"), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := read(t, filepath.Join(target, "f")); got != "x" {
		t.Error("it is bound to something else")
	}
	again, err := s.bind(t, "a/b", 0)
	if err != nil || again != target {
		t.Fatalf("%s, %v", again, err)
	}
	if mounts, err := mountsBelow(s.m.podDir("u1")); err != nil || len(mounts) != 1 {
		t.Errorf("bound twice: %v, %v", mounts, err)
	}
	// A file, and what a configMap's update puts in its place, for the next start of the container.
	for _, content := range []string{"old", "new"} {
		file := filepath.Join(s.volume, "file")
		if err := errors.Join(os.WriteFile(file+"~", []byte(content), 0o600), os.Rename(file+"~", file)); err != nil {
			t.Fatal(err)
		}
		target, err := s.bind(t, "file", 1)
		if err != nil {
			t.Fatal(err)
		}
		if got := read(t, target); got != content {
			t.Errorf("file %q, want %q", got, content)
		}
	}
	if err := s.m.Unmount(t.Context(), "u1"); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(s.volume, "a/b/f")); err != nil {
		t.Errorf("the volume lost what was in it: %v", err)
	}
}

func TestSubPathLinksStayInTheVolume(t *testing.T) {
	s := newScene(t)
	for link, to := range map[string]string{
		"absolute": s.outside, "relative": "../outside", "file": "../outside/secret", "nowhere": "../none",
		"in": "dir", "absolute-in": filepath.Join(s.volume, "dir"), "loop": "loop",
	} {
		if err := os.Symlink(to, filepath.Join(s.volume, link)); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(os.Mkdir(filepath.Join(s.volume, "dir"), 0o755),
		unix.Mkfifo(filepath.Join(s.volume, "fifo"), 0o600)); err != nil {
		t.Fatal(err)
	}
	const prepare, create = "failed to prepare subPath", "failed to create subPath directory"
	for _, test := range []struct{ path, want string }{
		{"absolute", prepare}, {"relative", prepare}, {"file", prepare}, {"nowhere", prepare}, {"loop", prepare},
		{"absolute/secret", prepare}, {"relative/new", create}, {"absolute/new/deeper", create}, {"fifo/below", prepare},
		{"/etc", "must not be an absolute path"}, {"a/../../outside", "must not contain '..'"},
		{"in", ""}, {"absolute-in", ""}, {"in/new", ""}, {"fifo", ""}, {".", ""}, {"dir//x/.", ""},
	} {
		target, err := s.bind(t, test.path, 0)
		switch {
		case test.want == "" && err != nil:
			t.Errorf("%s: %v", test.path, err)
		case test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)):
			t.Errorf("%s: %s, %v; want %q", test.path, target, err, test.want)
		case err != nil && strings.Contains(err.Error(), s.outside):
			t.Errorf("%s: the error shows something of the node: %v", test.path, err)
		}
	}
	left, err := os.ReadDir(s.outside)
	if err != nil || len(left) != 1 {
		t.Errorf("outside of the volume was written: %v, %v", left, err)
	}
}

// TestSubPathAgainstARacingLink: a container exchanges a folder of its volume for a link to
// the node's files, as fast as it can, while the agent makes and binds a path below it.
func TestSubPathAgainstARacingLink(t *testing.T) {
	s := newScene(t)
	folder, link := filepath.Join(s.volume, "dir"), filepath.Join(s.volume, "link")
	if err := errors.Join(os.MkdirAll(filepath.Join(folder, "sub"), 0o777), os.Symlink("../outside", link)); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(s.outside, "sub"), 0o700); err != nil {
		t.Fatal(err)
	}
	forbidden, err := os.Stat(filepath.Join(s.outside, "sub"))
	if err != nil {
		t.Fatal(err)
	}
	stop := linktest.Race(folder, link)
	bound, refused := 0, 0
	for i := range 3000 {
		path := "dir/sub"
		if i%3 == 0 {
			path = "dir/new/deeper"
		}
		target, err := s.bind(t, path, 0)
		if err != nil {
			refused++
			continue
		}
		bound++
		info, err := os.Stat(target)
		if err != nil {
			t.Fatal(err)
		}
		if os.SameFile(info, forbidden) {
			t.Fatal("a folder outside of the volume was bound")
		}
		if err := unix.Unmount(target, unix.MNT_DETACH); err != nil {
			t.Fatal(err)
		}
	}
	stop()
	if _, err := os.Stat(filepath.Join(s.outside, "new")); !errors.Is(err, fs.ErrNotExist) {
		t.Fatalf("a folder was made outside of the volume: %v", err)
	}
	if bound == 0 || refused == 0 {
		t.Fatalf("bound %d, refused %d: the race was not run", bound, refused)
	}
}

// FuzzSubPath: whatever the text, what is bound is in the volume, and nothing is made elsewhere.
func FuzzSubPath(f *testing.F) {
	for _, path := range []string{"a", "a/b", "..", "../outside", "a/../..", "/etc", "link", "link/x", ".", "", "a//b",
		"a/./b", "x\x00y", "...", "link/../secret"} {
		f.Add(path)
	}
	dir := f.TempDir()
	volume, outside := filepath.Join(dir, "volume"), filepath.Join(dir, "outside")
	if err := errors.Join(os.Mkdir(volume, 0o755), os.Mkdir(outside, 0o755),
		os.Symlink("../outside", filepath.Join(volume, "link"))); err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, path string) {
		if CheckSubPath(path) != nil {
			return
		}
		if len(path) > 200 || strings.Count(path, "/") > 20 {
			return // the file system's own limits
		}
		_ = makeSubPath("", volume, path)
		if left, err := os.ReadDir(outside); err != nil || len(left) != 0 {
			t.Fatalf("%q made %v outside of the volume, %v", path, left, err)
		}
		real, err := filepath.EvalSymlinks(filepath.Join(volume, path))
		if err != nil {
			return
		}
		opened, err := openBelow("", volume, real)
		if err != nil {
			return
		}
		defer opened.Close()
		if real != volume && !strings.HasPrefix(real, volume+"/") {
			t.Fatalf("%q opened %s", path, real)
		}
	})
}
