package pluginregistration

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

// makeSocket makes a socket that no process listens on.
func makeSocket(t *testing.T, path string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mknod(path, unix.S_IFSOCK|0o600, 0); err != nil {
		t.Fatal(err)
	}
}

func ignore(string) error { return nil }

func TestOnlySocketsAreFound(t *testing.T) {
	outside := t.TempDir()
	makeSocket(t, filepath.Join(outside, "other.sock"))
	dir := t.TempDir()
	for _, name := range []string{"a.sock", "sub/b", "sub/deeper/c", ".hidden", ".folder/d", "no\xfftext"} {
		makeSocket(t, filepath.Join(dir, name))
	}
	for link, target := range map[string]string{
		"link.sock": filepath.Join(outside, "other.sock"), "inner.sock": "a.sock", "folder": outside, "up": "..",
	} {
		if err := os.Symlink(target, filepath.Join(dir, link)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "file.sock"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mkfifo(filepath.Join(dir, "pipe.sock"), 0o600); err != nil {
		t.Fatal(err)
	}
	var watched []string
	found, err := folder{dir}.sockets(func(d string) error {
		watched = append(watched, d)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"a.sock", "sub/b", "sub/deeper/c"}
	if got := slices.Sorted(maps.Keys(found)); !slices.Equal(got, want) {
		t.Errorf("found %q, want %q", got, want)
	}
	folders := []string{dir, filepath.Join(dir, "sub"), filepath.Join(dir, "sub/deeper")}
	if !slices.Equal(watched, folders) {
		t.Errorf("watched %q, want %q", watched, folders)
	}
	for _, name := range []string{"link.sock", "inner.sock", "folder/other.sock", "up/x", "../x", "file.sock"} {
		if fd, _, err := (folder{dir}).socket(name); err == nil {
			_ = unix.Close(fd)
			t.Errorf("%s is opened as a socket", name)
		}
	}
}

func TestASocketThatIsReplacedIsAnother(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "a.sock")
	makeSocket(t, path)
	before, err := folder{dir}.sockets(ignore)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, 0o666); err != nil {
		t.Fatal(err)
	}
	if now, _ := (folder{dir}).sockets(ignore); now["a.sock"] != before["a.sock"] {
		t.Error("a socket with another mode is taken for another socket")
	}
	makeSocket(t, path+".new")
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
	if now, _ := (folder{dir}).sockets(ignore); now["a.sock"] == before["a.sock"] {
		t.Error("a socket that was replaced is taken for the same")
	}
}

func TestNumbersAreBounded(t *testing.T) {
	many := t.TempDir()
	for i := range maxSockets + 1 {
		makeSocket(t, filepath.Join(many, fmt.Sprintf("%04d.sock", i)))
	}
	found, err := folder{many}.sockets(ignore)
	if !errors.Is(err, errTooMany) || len(found) != maxSockets {
		t.Errorf("%d sockets were found with the error %v", len(found), err)
	}
	deep := t.TempDir()
	for i := range maxFolders + 1 {
		if err := os.Mkdir(filepath.Join(deep, fmt.Sprintf("%04d", i)), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	watches := 0
	_, err = folder{deep}.sockets(func(string) error { watches++; return nil })
	if !errors.Is(err, errTooMany) || watches > maxFolders {
		t.Errorf("%d folders are watched with the error %v", watches, err)
	}
	if _, err := (folder{filepath.Join(deep, "none")}).sockets(ignore); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a folder that is not there gives %v", err)
	}
}

// A file system that hangs, mounted by a driver's pod, must hold nothing up.
func TestMountsAreLeftOut(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Fatal("needs root: it mounts")
	}
	foreign, dir := t.TempDir(), t.TempDir()
	makeSocket(t, filepath.Join(foreign, "foreign.sock"))
	makeSocket(t, filepath.Join(dir, "a.sock"))
	place := filepath.Join(dir, "mounted")
	if err := os.Mkdir(place, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount(foreign, place, "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(place, unix.MNT_DETACH) })
	var watched []string
	found, err := folder{dir}.sockets(func(d string) error {
		watched = append(watched, d)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if got := slices.Sorted(maps.Keys(found)); !slices.Equal(got, []string{"a.sock"}) {
		t.Errorf("found %q", got)
	}
	if !slices.Equal(watched, []string{dir}) {
		t.Errorf("watched %q", watched)
	}
	if fd, _, err := (folder{dir}).socket("mounted/foreign.sock"); err == nil {
		_ = unix.Close(fd)
		t.Error("a socket of another mount is opened")
	}
}
