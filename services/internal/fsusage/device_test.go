package fsusage

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// stat(2) says that each subvolume is a device of its own, and yet one that is full fills the others.
func TestSubvolumesOfOneBtrfsAreOneFilesystem(t *testing.T) {
	dir := btrfs(t)
	subvolume := filepath.Join(dir, "images")
	run(t, "btrfs", "subvolume", "create", subvolume)
	mounted := t.TempDir()
	run(t, "mount", "--bind", subvolume, mounted)
	t.Cleanup(func() { run(t, "umount", mounted) })

	var outer, inner unix.Stat_t
	if err := unix.Stat(dir, &outer); err != nil {
		t.Fatal(err)
	}
	if err := unix.Stat(subvolume, &inner); err != nil || inner.Dev == outer.Dev {
		t.Fatalf("the subvolume is of device %d, %v, and so is the filesystem", inner.Dev, err)
	}
	var p Prober
	want, err := p.Usage(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{subvolume, mounted} {
		if u, err := p.Usage(t.Context(), path); err != nil || u.DeviceID != want.DeviceID {
			t.Errorf("%s is of device %d, %v; want %d", path, u.DeviceID, err, want.DeviceID)
		}
	}
	if u, err := p.Usage(t.Context(), t.TempDir()); err != nil || u.DeviceID == want.DeviceID {
		t.Errorf("a folder elsewhere is of device %d, %v, as the btrfs", u.DeviceID, err)
	}
}

// btrfs mounts a new filesystem of that kind.
func btrfs(t *testing.T) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatal("needs root: it mounts a filesystem")
	}
	image, dir := filepath.Join(t.TempDir(), "disk"), t.TempDir()
	run(t, "truncate", "--size", "256M", image)
	run(t, "mkfs.btrfs", "--quiet", image)
	run(t, "mount", "-o", "loop", image, dir)
	t.Cleanup(func() { run(t, "umount", dir) })
	return dir
}

func run(t *testing.T, name string, args ...string) {
	t.Helper()
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s %v: %v: %s", name, args, err, out)
	}
}
