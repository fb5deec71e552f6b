package volumes

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"
	mount "k8s.io/mount-utils"

	"github.com/microlet/microlet/services/internal/removal"
	"github.com/microlet/microlet/services/podsync/internal/mountlist"
)

// removeCall asks for the removal of a pod's folder.
type removeCall struct{ Dir string }

// remove unmounts all below a pod's folder, also what other processes have mounted, and removes the folder. A folder
// that is not there is success. As long as something is mounted, nothing is removed.
func (k *kernel) remove(ctx context.Context, dir string) error {
	dir, err := withoutLinks(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if err := k.unmountBelow(ctx, dir); err != nil {
		return err
	}
	return removal.Tree(ctx, dir)
}

// withoutLinks resolves the links on the way to a folder. The kernel lists mounts without symbolic links: compared with
// the path as it was given, none would be found. What is mounted then would stop a removal halfway.
func withoutLinks(dir string) (string, error) {
	parent, err := filepath.EvalSymlinks(filepath.Dir(dir))
	return filepath.Join(parent, filepath.Base(dir)), err
}

// unmountSubPaths unmounts the subPaths of a pod that has any.
func (k *kernel) unmountSubPaths(ctx context.Context, dir string) error {
	dir, err := withoutLinks(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return k.unmountBelow(ctx, dir)
}

// unmountBelow unmounts all below a folder, whose path has no links.
func (k *kernel) unmountBelow(ctx context.Context, dir string) error {
	mounts, err := k.mountsBelow(dir)
	if err != nil {
		return err
	}
	for i := range mounts {
		if err := k.unmountOne(ctx, &mounts[i]); err != nil {
			return fmt.Errorf("unmount %s: %w", mounts[i].Path, err)
		}
	}
	if mounts, err = k.mountsBelow(dir); err != nil {
		return err
	}
	if len(mounts) > 0 {
		return fmt.Errorf("%s is still mounted", mounts[0].Path)
	}
	return nil
}

// mountsBelow lists the mount points in dir: the deepest first, and of two at one place the upper one first.
func (k *kernel) mountsBelow(dir string) ([]mount.MountPoint, error) {
	found, err := k.mounter().List()
	if err != nil {
		return nil, fmt.Errorf("list mounts: %w", err)
	}
	var below []mount.MountPoint
	for _, m := range found {
		if m.Path = mountlist.Path(m.Path); strings.HasPrefix(m.Path, dir+"/") {
			below = append(below, m)
		}
	}
	slices.Reverse(below)
	slices.SortStableFunc(below, func(a, b mount.MountPoint) int {
		return strings.Count(b.Path, "/") - strings.Count(a.Path, "/")
	})
	return below, nil
}

// unmountOne unmounts a mount point. An export of a server that is away is unmounted by force.
func (k *kernel) unmountOne(ctx context.Context, m *mount.MountPoint) error {
	if isNFS(m.Type) {
		return k.unmountNFS(ctx, m.Path)
	}
	return k.unmount(m.Path, 0)
}

// unmount unmounts what is at a path of the kernel's list of mounts. Such a path has no symbolic
// links, and one that a pod has put into the way since leads nowhere.
func unmount(path string, flags int) error {
	parent, err := openWithoutLinks(filepath.Dir(path), func(int) error { return nil })
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(parent) }()
	return unix.Unmount(fmt.Sprintf("/proc/self/fd/%d/%s", parent, filepath.Base(path)),
		unix.UMOUNT_NOFOLLOW|flags)
}

// openWithoutLinks opens a folder name by name, so that its path may be of any length. Each folder on the way must
// pass.
func openWithoutLinks(path string, pass func(fd int) error) (int, error) {
	const flags = unix.O_PATH | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC
	fd, err := unix.Open("/", flags, 0)
	if err != nil {
		return -1, err
	}
	for name := range strings.FieldsFuncSeq(path, func(r rune) bool { return r == '/' }) {
		next, err := unix.Openat(fd, name, flags, 0)
		_ = unix.Close(fd)
		if err != nil {
			return -1, fmt.Errorf("open %s on the way: %w", name, err)
		}
		if err := pass(next); err != nil {
			_ = unix.Close(next)
			return -1, err
		}
		fd = next
	}
	return fd, nil
}

// validUID keeps a pod's UID, which a manifest may bring, from being a path.
func validUID(uid types.UID) error {
	if uid == "" || strings.HasPrefix(string(uid), ".") || strings.ContainsAny(string(uid), "/\x00") {
		return fmt.Errorf("metadata.uid %q cannot be the name of a folder: leave it out or use a UUID", uid)
	}
	return nil
}
