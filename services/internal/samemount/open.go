// Package samemount opens folders and files of other users without leaving the mount that they are on.
//
// What is mounted on a folder may be a file system that does not answer. With openat2 the kernel refuses to enter it
// and does not touch it.
package samemount

import (
	"errors"
	"sync"

	"golang.org/x/sys/unix"
)

const (
	folderFlags = unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC
	// lookFlags give a descriptor that shows what a file is, and leave the file itself alone.
	lookFlags = unix.O_PATH | unix.O_NOFOLLOW | unix.O_CLOEXEC
)

// Open opens a folder in an open folder, by its name or by "..". The error is EXDEV if it is on another mount, and
// ELOOP or ENOTDIR if it is a symbolic link. It uses openat2 where the kernel has it (5.6) and lets it be called.
func Open(parent int, name string) (fd int, err error) {
	if isOld() {
		return OpenComparing(parent, name)
	}
	return openat2(parent, name, folderFlags)
}

// isOld reports whether the kernel has no openat2, or does not let it be called.
var isOld = sync.OnceValue(func() bool {
	fd, err := openat2(unix.AT_FDCWD, ".", folderFlags)
	if err == nil {
		_ = unix.Close(fd)
	}
	return errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EPERM)
})

type openFunc func(parent int, name string, flags int) (fd int, err error)

func opener() openFunc {
	if isOld() {
		return openComparing
	}
	return openat2
}

func openat2(parent int, name string, flags int) (fd int, err error) {
	how := unix.OpenHow{
		Flags:   uint64(flags),
		Resolve: unix.RESOLVE_NO_XDEV | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS,
	}
	err = IgnoringEINTR(func() error {
		fd, err = unix.Openat2(parent, name, &how)
		return err
	})
	return fd, err
}

// OpenComparing is Open for older kernels: it opens the folder and then looks on which mount it is.
func OpenComparing(parent int, name string) (fd int, err error) {
	return openComparing(parent, name, folderFlags)
}

func openComparing(parent int, name string, flags int) (fd int, err error) {
	err = IgnoringEINTR(func() error {
		fd, err = unix.Openat(parent, name, flags, 0)
		return err
	})
	if err != nil {
		return -1, err
	}
	outer, err := MountID(parent)
	if err == nil {
		var inner int
		if inner, err = MountID(fd); err == nil && inner != outer {
			err = unix.EXDEV
		}
	}
	if err != nil {
		_ = unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// IgnoringEINTR calls f until no signal interrupts it.
func IgnoringEINTR(f func() error) error {
	for {
		if err := f(); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}
