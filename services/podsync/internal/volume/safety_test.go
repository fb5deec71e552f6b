package volume

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"k8s.io/apimachinery/pkg/types"
	mount "k8s.io/mount-utils"
)

type noTokens struct{ Tokens }

func (noTokens) Forget(types.UID) {}

// TestUnmountNeverRemovesThroughMounts: what is mounted below a pod's folder, by whomever, keeps what it holds.
func TestUnmountNeverRemovesThroughMounts(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Fatal("needs root: it mounts")
	}
	for name, at := range map[string]string{"plain": "volumes/x/v", "blank": "volumes/x/a b", "symlinked root": "volumes/x/v"} {
		t.Run(name, func(t *testing.T) {
			dir, err := filepath.EvalSymlinks(t.TempDir())
			if err != nil {
				t.Fatal(err)
			}
			root, data := filepath.Join(dir, "root"), filepath.Join(dir, "data")
			target := filepath.Join(root, "pods", "uid", at)
			for _, d := range []string{target, data} {
				if err := os.MkdirAll(d, 0o750); err != nil {
					t.Fatal(err)
				}
			}
			precious := filepath.Join(data, "precious")
			if err := os.WriteFile(precious, nil, 0o600); err != nil {
				t.Fatal(err)
			}
			if err := unix.Mount(data, target, "", unix.MS_BIND, ""); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = unix.Unmount(target, unix.MNT_DETACH) })
			given := root
			if name == "symlinked root" {
				given = filepath.Join(dir, "link")
				if err := os.Symlink(root, given); err != nil {
					t.Fatal(err)
				}
			}
			m := New(Options{RootDir: given, Tokens: noTokens{}, Mounter: mount.New("")})
			if err := m.Unmount(t.Context(), "uid"); err != nil {
				t.Error(err)
			}
			if _, err := os.Stat(precious); err != nil {
				t.Errorf("what was mounted lost its content: %v", err)
			}
			if _, err := os.Stat(filepath.Join(root, "pods", "uid")); !os.IsNotExist(err) {
				t.Errorf("the pod's folder is still there: %v", err)
			}
		})
	}
}

func TestUnmountRefusesPaths(t *testing.T) {
	root := t.TempDir()
	outside := filepath.Join(root, "keep")
	if err := os.MkdirAll(outside, 0o750); err != nil {
		t.Fatal(err)
	}
	m := New(Options{RootDir: root, Tokens: noTokens{}, Mounter: mount.New("")})
	for _, uid := range []types.UID{"../keep", "..", ".", "", "a/b"} {
		if err := m.Unmount(t.Context(), uid); err == nil {
			t.Errorf("pod uid %q was taken for a folder", uid)
		}
	}
	if _, err := os.Stat(outside); err != nil {
		t.Errorf("a folder outside of pods is gone: %v", err)
	}
}
