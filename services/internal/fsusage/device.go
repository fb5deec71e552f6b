package fsusage

import (
	"fmt"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/microlet/microlet/services/internal/samemount"
)

// mountedDevice is the device of the mount that the path is on. For stat(2) each subvolume of a btrfs is a device of
// its own; the list of mounts has one number for all of them.
func mountedDevice(path string) (uint64, error) {
	fd := -1
	err := samemount.IgnoringEINTR(func() (err error) {
		fd, err = unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
		return err
	})
	if err != nil {
		return 0, err
	}
	defer func() { _ = unix.Close(fd) }()
	id, err := samemount.MountID(fd)
	if err != nil {
		return 0, err
	}
	mounts, err := mountinfo.GetMounts(func(m *mountinfo.Info) (skip, stop bool) { return m.ID != id, m.ID == id })
	if err != nil {
		return 0, fmt.Errorf("list of mounts: %w", err)
	}
	if len(mounts) == 0 {
		return 0, fmt.Errorf("the list of mounts has no mount %d", id)
	}
	return unix.Mkdev(uint32(mounts[0].Major), uint32(mounts[0].Minor)), nil
}
