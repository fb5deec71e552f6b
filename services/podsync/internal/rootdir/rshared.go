package rootdir

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
	mount "k8s.io/mount-utils"

	"github.com/microlet/microlet/services/internal/samemount"
	"github.com/microlet/microlet/services/podsync/internal/mountlist"
)

// MakeRShared makes a folder, and all that is and will be mounted below it, a shared mount, as the
// kubelet does with its root folder: mounts of volumes then reach containers, and those that
// containers make (mountPropagation: Bidirectional) the node. A folder on a shared mount stays as it
// is; one that is no mount point is bound onto itself.
func MakeRShared(dir string) error {
	dir, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return err
	}
	if dir, err = filepath.Abs(dir); err != nil {
		return err
	}
	// What is mounted below the folder now is reached through it when the folder is covered.
	folder, err := os.OpenFile(dir, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	defer folder.Close()
	mounts, err := mount.ParseMountInfo(mountlist.File)
	if err != nil {
		return fmt.Errorf("list mounts: %w", err)
	}
	id, err := samemount.MountID(int(folder.Fd()))
	if err != nil {
		return err
	}
	i := slices.IndexFunc(mounts, func(m mount.MountInfo) bool { return m.ID == id })
	if i < 0 {
		return fmt.Errorf("the mount of %s is not in %s", dir, mountlist.File)
	}
	if slices.ContainsFunc(mounts[i].OptionalFields, func(f string) bool { return strings.HasPrefix(f, "shared:") }) {
		return nil
	}
	var left error
	if mountlist.Path(mounts[i].MountPoint) != dir {
		if err := unix.Mount(dir, dir, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("bind %s onto itself: %w", dir, err)
		}
		left = moveMounts(folder, dir, mounts, id)
	}
	if err := unix.Mount("", dir, "", unix.MS_SHARED|unix.MS_REC, ""); err != nil {
		return errors.Join(fmt.Errorf("make %s a shared mount: %w", dir, err), left)
	}
	return left
}

// moveMounts moves what an agent that did not share the folder has mounted below it onto the mount
// that now covers it: the pods' volumes would be out of reach, and their folders busy for ever.
func moveMounts(covered *os.File, dir string, mounts []mount.MountInfo, parent int) error {
	var errs []error
	for i := range mounts {
		below, ok := strings.CutPrefix(mountlist.Path(mounts[i].MountPoint), dir+"/")
		if !ok || mounts[i].ParentID != parent {
			continue // it goes with the one that it is mounted on
		}
		source := fmt.Sprintf("/proc/self/fd/%d/%s", covered.Fd(), below)
		if err := unix.Mount(source, filepath.Join(dir, below), "", unix.MS_MOVE, ""); err != nil {
			errs = append(errs, fmt.Errorf("move the mount %s to the shared one: %w", filepath.Join(dir, below), err))
		}
	}
	return errors.Join(errs...)
}
