package rootdir

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	mount "k8s.io/mount-utils"

	"github.com/microlet/microlet/services/podsync/internal/mountlist"
	"github.com/microlet/microlet/services/podsync/internal/mountlist/mounttest"
)

// mountsAt are the mounts at a path, each with what it says of its propagation.
func mountsAt(t *testing.T, path string) (propagation []string) {
	t.Helper()
	all, err := mount.ParseMountInfo(mountlist.File)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range all {
		if m.MountPoint == path {
			kind, _, _ := strings.Cut(strings.Join(m.OptionalFields, ","), ":")
			propagation = append(propagation, kind)
		}
	}
	return propagation
}

func TestMakeRShared(t *testing.T) {
	mounttest.WithOwnMounts(t, func(t *testing.T) {
		dir := mounttest.ResolvedTempDir(t)
		t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
		link := filepath.Join(t.TempDir(), "link")
		if err := os.Symlink(dir, link); err != nil {
			t.Fatal(err)
		}
		for _, given := range []string{dir, dir, link} { // a restart finds it shared
			if err := MakeRShared(given); err != nil {
				t.Fatal(err)
			}
			if got := mountsAt(t, dir); !slices.Equal(got, []string{"shared"}) {
				t.Fatalf("%s: mounts %v, want one that is shared", given, got)
			}
		}
		mounttest.Tmpfs(t, filepath.Join(dir, "volume"))
		if got := mountsAt(t, filepath.Join(dir, "volume")); !slices.Equal(got, []string{"shared"}) {
			t.Errorf("a volume's mounts %v, want one that is shared", got)
		}
		// A folder on the shared mount needs none of its own.
		if err := os.Mkdir(filepath.Join(dir, "below"), 0o750); err != nil {
			t.Fatal(err)
		}
		if err := MakeRShared(filepath.Join(dir, "below")); err != nil {
			t.Fatal(err)
		}
		if got := mountsAt(t, filepath.Join(dir, "below")); len(got) != 0 {
			t.Errorf("mounts %v, want none", got)
		}
	})
}

func TestMakeRSharedOfAMountPoint(t *testing.T) {
	mounttest.WithOwnMounts(t, func(t *testing.T) {
		dir := mounttest.ResolvedTempDir(t)
		mounttest.Tmpfs(t, dir)
		mounttest.Tmpfs(t, filepath.Join(dir, "volume"))
		if err := MakeRShared(dir); err != nil {
			t.Fatal(err)
		}
		for _, path := range []string{dir, filepath.Join(dir, "volume")} {
			if got := mountsAt(t, path); !slices.Equal(got, []string{"shared"}) {
				t.Errorf("%s: mounts %v, want one that is shared", path, got)
			}
		}
	})
}
