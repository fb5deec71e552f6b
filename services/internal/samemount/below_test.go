package samemount

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/microlet/microlet/services/internal/regularfile"
)

// TestOnlyRegularFilesBelowAreOpened tries both ways of opening with everything that can have the name of a file.
func TestOnlyRegularFilesBelowAreOpened(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Fatal("needs root: it mounts")
	}
	outside := t.TempDir()
	secret := filepath.Join(outside, "secret")
	real := t.TempDir()
	root := filepath.Join(t.TempDir(), "link")
	in := func(name string) string { return filepath.Join(real, name) }
	err := errors.Join(os.Symlink(real, root), os.WriteFile(secret, []byte("secret"), 0o600),
		os.MkdirAll(in("a/b"), 0o755), os.WriteFile(in("a/b/file"), []byte("text"), 0o600),
		os.Symlink(secret, in("a/link")), os.Symlink(in("a/b/file"), in("a/inner")), os.Symlink(outside, in("out")),
		unix.Mkfifo(in("a/fifo"), 0o600), os.Mkdir(in("mount"), 0o755), os.WriteFile(in("a/bound"), nil, 0o600))
	if err != nil {
		t.Fatal(err)
	}
	for source, target := range map[string]string{outside: in("mount"), secret: in("a/bound")} {
		if err := unix.Mount(source, target, "", unix.MS_BIND, ""); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = unix.Unmount(target, unix.MNT_DETACH) })
	}
	irregular := regularfile.ErrNotRegular
	for way, open := range map[string]openFunc{"openat2": openat2, "openat": openComparing} {
		f, err := regularFile(open, root, "a/b/file")
		if err != nil {
			t.Fatalf("%s: %v", way, err)
		}
		if text, err := io.ReadAll(f); err != nil || string(text) != "text" {
			t.Errorf("%s: read %q, %v", way, text, err)
		}
		f.Close()
		for path, want := range map[string]error{
			"a/none": fs.ErrNotExist, "none/file": fs.ErrNotExist, "a/link": irregular, "a/inner": irregular,
			"a/fifo": irregular, "a/b": irregular, "a/bound": unix.EXDEV, "mount/secret": unix.EXDEV,
			"out/secret": nil, "a/b/file/x": nil, "../secret": nil, "a/../../x": nil, "/a/b/file": nil, ".": nil,
		} {
			f, err := regularFile(open, root, path)
			if err == nil {
				f.Close()
			}
			if err == nil || want != nil && !errors.Is(err, want) {
				t.Errorf("%s of %s: %v, want %v", way, path, err, want)
			}
		}
		dir, err := folder(open, root, "a/b")
		if err != nil {
			t.Fatalf("%s: %v", way, err)
		}
		dir.Close()
		for _, path := range []string{"out", "mount", "a/b/file", "a/inner", "..", "a/../.."} {
			if dir, err := folder(open, root, path); err == nil {
				dir.Close()
				t.Errorf("%s opened the folder %s", way, path)
			}
		}
	}
}
