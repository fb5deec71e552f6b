package volumes

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
	mount "k8s.io/mount-utils"

	"github.com/microlet/microlet/services/podsync/internal/mountlist/mounttest"
	"github.com/microlet/microlet/services/podsync/internal/rootdir"
)

// TestMakeRSharedKeepsVolumes: pods run with volumes that were mounted before the folder was shared.
func TestMakeRSharedKeepsVolumes(t *testing.T) {
	mounttest.WithOwnMounts(t, func(t *testing.T) {
		dir := mounttest.ResolvedTempDir(t)
		m := NewManager(ManagerOptions{RootDir: dir, Tokens: noTokens{}, Mounter: mount.New(""), Foreign: Operations()})
		t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
		pod := m.podDir("uid")
		outer := filepath.Join(pod, "volumes", "a b")
		inner := filepath.Join(outer, "inner")
		mounttest.Tmpfs(t, outer)
		mounttest.Tmpfs(t, inner)
		mounttest.Tmpfs(t, outer+"-2")
		file := filepath.Join(inner, "file")
		if err := os.WriteFile(file, []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := rootdir.MakeRShared(dir); err != nil {
			t.Fatal(err)
		}
		if got := read(t, file); got != "x" {
			t.Errorf("a volume that was mounted before has %q", got)
		}
		all, err := mountsBelow(dir)
		if err != nil || len(all) != 3 {
			t.Errorf("mounts below: %v, %v", all, err)
		}
		if err := m.Unmount(t.Context(), "uid"); err != nil {
			t.Errorf("the pod's volumes cannot be taken away: %v", err)
		}
		if _, err := os.Stat(pod); !os.IsNotExist(err) {
			t.Errorf("the pod's folder is still there: %v", err)
		}
	})
}

// mountsBelow lists what is mounted there.
func mountsBelow(dir string) ([]string, error) {
	found, err := (&kernel{mounter: func() mount.Interface { return mount.New("") }}).mountsBelow(dir)
	var paths []string
	for _, m := range found {
		paths = append(paths, m.Path)
	}
	return paths, err
}
