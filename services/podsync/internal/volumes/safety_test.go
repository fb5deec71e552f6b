package volumes

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"k8s.io/apimachinery/pkg/types"
	mount "k8s.io/mount-utils"
)

type noTokens struct{ Tokens }

func (noTokens) Forget(types.UID) {}

// TestUnmountNeverRemovesThroughMounts: what any process has mounted below a pod's folder keeps what it holds.
func TestUnmountNeverRemovesThroughMounts(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Fatal("needs root: it mounts")
	}
	for name, at := range map[string]string{
		"plain":          "volumes/x/v",
		"blank":          "volumes/x/a b",
		"symlinked root": "volumes/x/v",
	} {
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
			m := NewManager(ManagerOptions{RootDir: given, Tokens: noTokens{}, Mounter: mount.New(""), Foreign: Operations()})
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
	m := NewManager(ManagerOptions{RootDir: root, Tokens: noTokens{}, Mounter: mount.New(""), Foreign: Operations()})
	for _, uid := range []types.UID{"../keep", "..", ".", "", "a/b"} {
		if err := m.Unmount(t.Context(), uid); err == nil {
			t.Errorf("pod uid %q was taken for a folder", uid)
		}
	}
	if _, err := os.Stat(outside); err != nil {
		t.Errorf("a folder outside of pods is gone: %v", err)
	}
}

// TestUnmountRemovesWhatNoPathCanSay: a container may nest folders beyond PATH_MAX, and mount something in
// the deepest where it may mount.
func TestUnmountRemovesWhatNoPathCanSay(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Fatal("needs root: it mounts")
	}
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	m := NewManager(ManagerOptions{RootDir: dir, Tokens: noTokens{}, Mounter: mount.New(""), Foreign: Operations()})
	volume := filepath.Join(m.podDir("uid"), "volumes", "kubernetes.io~empty-dir", "v")
	if err := os.MkdirAll(volume, 0o750); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", volume, "tmpfs", 0, "size=1m"); err != nil { // with which all of it can be detached
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(volume, unix.MNT_DETACH) })
	data := t.TempDir()
	precious := filepath.Join(data, "precious")
	if err := os.WriteFile(precious, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	parent, err := os.Open(volume)
	if err != nil {
		t.Fatal(err)
	}
	for range 50 {
		name := strings.Repeat("d", 200)
		if err := unix.Mkdirat(int(parent.Fd()), name, 0o700); err != nil {
			t.Fatal(err)
		}
		fd, err := unix.Openat(int(parent.Fd()), name, unix.O_RDONLY|unix.O_DIRECTORY, 0)
		if err := errors.Join(err, parent.Close()); err != nil {
			t.Fatal(err)
		}
		parent = os.NewFile(uintptr(fd), name)
	}
	mounted := errors.Join(unix.Mount(data, fmt.Sprintf("/proc/self/fd/%d", parent.Fd()), "", unix.MS_BIND, ""),
		parent.Close())
	if mounted != nil {
		t.Fatal(mounted)
	}
	if err := m.Unmount(t.Context(), "uid"); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(precious); err != nil {
		t.Errorf("what was mounted lost its content: %v", err)
	}
	if _, err := os.Stat(m.podDir("uid")); !os.IsNotExist(err) {
		t.Errorf("the pod's folder is still there: %v", err)
	}
}

// TestUnmountFollowsNoLink: between the list of mounts and the unmounting, a pod exchanges a folder on the way
// for a link to a place where something of the node's is mounted.
func TestUnmountFollowsNoLink(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Fatal("needs root: it mounts")
	}
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	root, theirs := filepath.Join(dir, "root"), filepath.Join(dir, "node", "mounted")
	volume := filepath.Join(root, "pods", "uid", "volumes", "v")
	point := filepath.Join(volume, "sub", "mounted")
	if err := errors.Join(os.MkdirAll(point, 0o750), os.MkdirAll(theirs, 0o750)); err != nil {
		t.Fatal(err)
	}
	for _, at := range []string{point, theirs} {
		if err := unix.Mount("tmpfs", at, "tmpfs", 0, "size=64k"); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = unix.Unmount(at, unix.MNT_DETACH) })
	}
	mounts := &swapping{Interface: mount.New(""), afterList: func() {
		aside := filepath.Join(volume, "aside")
		if err := errors.Join(os.Rename(filepath.Join(volume, "sub"), aside),
			os.Symlink(filepath.Dir(theirs), filepath.Join(volume, "sub"))); err != nil {
			t.Error(err)
		}
	}}
	k := &kernel{mounter: func() mount.Interface { return mounts }, unmount: unmount}
	m := NewManager(ManagerOptions{RootDir: root, Tokens: noTokens{}, Mounter: mounts, Foreign: k.operations()})
	if err := m.Unmount(t.Context(), "uid"); err == nil {
		t.Error("nothing was wrong with a link in the way")
	}
	if !isMountPoint(mount.New(""), theirs) {
		t.Error("something of the node's was unmounted")
	}
	if err := m.Unmount(t.Context(), "uid"); err != nil { // by its new name
		t.Error(err)
	}
	if _, err := os.Stat(filepath.Join(root, "pods", "uid")); !os.IsNotExist(err) {
		t.Errorf("the pod's folder is still there: %v", err)
	}
}

// swapping does something once the mounts were listed.
type swapping struct {
	mount.Interface
	afterList func()
}

func (s *swapping) List() ([]mount.MountPoint, error) {
	points, err := s.Interface.List()
	if s.afterList != nil {
		s.afterList()
		s.afterList = nil
	}
	return points, err
}
