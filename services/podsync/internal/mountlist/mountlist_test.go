package mountlist

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// A mount point is found behind a link, and with what the kernel escapes in its name.
func TestHas(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Fatal("needs root: it mounts")
	}
	dir := t.TempDir()
	point, link := filepath.Join(dir, `a b#c\d`), filepath.Join(t.TempDir(), "link")
	if err := os.Mkdir(point, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(dir, link); err != nil {
		t.Fatal(err)
	}
	behind := filepath.Join(link, filepath.Base(point))
	check := func(path string, has, below bool) {
		t.Helper()
		if got, err := Has(path); err != nil || got != has {
			t.Errorf("Has(%q) is %t, %v", path, got, err)
		}
		if got, err := HasBelow(path); err != nil || got != below {
			t.Errorf("HasBelow(%q) is %t, %v", path, got, err)
		}
	}
	check(behind, false, false)
	if err := unix.Mount("none", point, "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(point, 0); err != nil {
			t.Error(err)
		}
	})
	check(point, true, true)
	check(behind, true, true)
	check(dir, false, true)
	check(filepath.Join(dir, "absent/point"), false, false)
}
