package mounts

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// Under returns the mount points at or below any of the folders, the one
// mounted last first. A place with two mounts is listed twice.
func Under(dirs ...string) ([]string, error) {
	infos, err := mountinfo.GetMounts(func(m *mountinfo.Info) (skip, stop bool) {
		return !Inside(m.Mountpoint, dirs...), false
	})
	if err != nil {
		return nil, fmt.Errorf("list mounts: %w", err)
	}
	points := make([]string, 0, len(infos))
	for _, m := range infos {
		points = append(points, m.Mountpoint)
	}
	slices.Reverse(points)
	return points, nil
}

// Inside reports whether the path is one of the folders or below it.
func Inside(path string, dirs ...string) bool {
	for _, dir := range dirs {
		dir = strings.TrimRight(dir, "/")
		if dir != "" && (path == dir || strings.HasPrefix(path, dir+"/")) {
			return true
		}
	}
	return false
}

// RemoveUnder unmounts all that is mounted at or below the folders. A mount
// that is busy is detached: what used it has been stopped before.
func RemoveUnder(dirs ...string) error {
	const rounds = 3 // a mount may uncover another one of the same place
	for range rounds {
		points, err := Under(dirs...)
		if err != nil {
			return err
		}
		if len(points) == 0 {
			return nil
		}
		for _, point := range points {
			err := unix.Unmount(point, unix.UMOUNT_NOFOLLOW)
			if errors.Is(err, unix.EBUSY) {
				err = unix.Unmount(point, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
			}
			// EINVAL: no longer a mount point, gone with its parent.
			if err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
				return fmt.Errorf("unmount %s: %w", point, err)
			}
		}
	}
	points, err := Under(dirs...)
	if err != nil {
		return err
	}
	if len(points) > 0 {
		return fmt.Errorf("unmount: still mounted: %s", strings.Join(points, ", "))
	}
	return nil
}

// Tmpfs mounts an empty tmpfs on the folder, unless one is there already.
func Tmpfs(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("mount tmpfs: %w", err)
	}
	mounted, err := mountinfo.Mounted(dir)
	if err != nil {
		return fmt.Errorf("mount tmpfs: %w", err)
	}
	if mounted {
		return nil
	}
	if err := unix.Mount("tmpfs", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=0755"); err != nil {
		return fmt.Errorf("mount tmpfs on %s: %w", dir, err)
	}
	return nil
}

// Share makes a folder a mount of its own, unless it is one, and shares what is mounted below it with mount namespaces
// that are made later, whatever they do with the mounts around it.
func Share(dir string) error {
	mounted, err := mountinfo.Mounted(dir)
	if err != nil {
		return fmt.Errorf("share mounts below %s: %w", dir, err)
	}
	if !mounted {
		if err := unix.Mount(dir, dir, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("mount %s on itself: %w", dir, err)
		}
		// It would be shared with the mount around it, if that is.
		if err := unix.Mount("", dir, "", unix.MS_PRIVATE, ""); err != nil {
			return fmt.Errorf("share mounts below %s: %w", dir, err)
		}
	}
	if err := unix.Mount("", dir, "", unix.MS_SHARED, ""); err != nil {
		return fmt.Errorf("share mounts below %s: %w", dir, err)
	}
	return nil
}
