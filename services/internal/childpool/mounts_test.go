package childpool

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// listOf is a list of mounts, of which each is of a file system of its own.
func listOf(points ...string) func() (MountPoints, error) {
	list := MountPoints{}
	for i, point := range points {
		list[point] = Lane{Minor: 1 + i}
	}
	return func() (MountPoints, error) { return list, nil }
}

func TestMountPoint(t *testing.T) {
	list, _ := listOf("/", "/mnt", "/mnt/nfs", "/mnt/nfs-2", "/proc")()
	for path, want := range map[string]string{
		"/": "/", "/etc": "/", "/mnt": "/mnt", "/mnt/nfs/a": "/mnt/nfs", "/mnt/nfs-3": "/mnt", "/mnt/../proc/1": "/proc",
		"/mnt/nfs/": "/mnt/nfs", "server:/export": "server", "[fd00::1]:/": "[fd00::1]",
	} {
		got, lane := list.of(path)
		if got != want {
			t.Errorf("%s is on %s, want %s", path, got, want)
		}
		if filepath.IsAbs(path) && lane != list[want] || !filepath.IsAbs(path) && lane != (Lane{Server: want}) {
			t.Errorf("%s has the lane %v", path, lane)
		}
	}
}

// TestKernelMounts: the numbers of a device are those that stat(2) shows.
func TestKernelMounts(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Fatal("needs root: it mounts")
	}
	list, err := kernelMounts()
	if err != nil {
		t.Fatal(err)
	}
	if got, _ := list.of("/proc/self"); got != "/proc" {
		t.Errorf("/proc/self is on %s: %v", got, list)
	}
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=64k"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	list, err = kernelMounts()
	if err != nil {
		t.Fatal(err)
	}
	var stat unix.Stat_t
	if err := unix.Stat(dir, &stat); err != nil {
		t.Fatal(err)
	}
	want := Lane{Major: int(unix.Major(stat.Dev)), Minor: int(unix.Minor(stat.Dev))}
	if point, lane := list.of(filepath.Join(dir, "a")); point != dir || lane != want {
		t.Errorf("what was mounted at %s is at %s, %v, want %v", dir, point, lane, want)
	}
}
