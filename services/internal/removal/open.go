package removal

import (
	"errors"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/microlet/microlet/services/internal/mountid"
)

const folderFlags = unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC | unix.O_NONBLOCK

// folderOpener is how to open a folder in an open folder: with openat2 where the kernel has it
// (5.6) and lets it be called.
var folderOpener = sync.OnceValue(func() func(int, string) (int, error) {
	fd, err := openOnMount(unix.AT_FDCWD, ".")
	if errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EPERM) {
		return openComparingMounts
	}
	if err == nil {
		_ = unix.Close(fd)
	}
	return openOnMount
})

// openOnMount opens a folder and does not touch what is mounted on it: a file system that does not
// answer would hang.
func openOnMount(parent int, name string) (fd int, err error) {
	how := unix.OpenHow{
		Flags:   folderFlags,
		Resolve: unix.RESOLVE_NO_XDEV | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS,
	}
	err = ignoringEINTR(func() error {
		fd, err = unix.Openat2(parent, name, &how)
		return err
	})
	return fd, err
}

// openComparingMounts is for older kernels: it opens a folder and looks on which mount it is.
func openComparingMounts(parent int, name string) (fd int, err error) {
	err = ignoringEINTR(func() error {
		fd, err = unix.Openat(parent, name, folderFlags, 0)
		return err
	})
	if err != nil {
		return -1, err
	}
	outer, err := mountid.Of(parent)
	if err == nil {
		var inner int
		if inner, err = mountid.Of(fd); err == nil && inner != outer {
			err = unix.EXDEV
		}
	}
	if err != nil {
		_ = unix.Close(fd)
		return -1, err
	}
	return fd, nil
}
