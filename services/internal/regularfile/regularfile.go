// Package regularfile opens files that another user may have made, if they are regular files.
//
// The open of a device starts its driver, and that of a FIFO waits for its other end. So the package looks what has the
// name before it opens it, and what it opens is what it looked at, whatever has the name by then.
package regularfile

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// ErrNotRegular is the error for a folder, a FIFO, a socket, a device, and a link that is not followed.
var ErrNotRegular = errors.New("it is not a regular file")

// look gives a descriptor that shows what a file is and leaves the file itself alone. It is of a link, not of its
// target.
const look = unix.O_PATH | unix.O_NOFOLLOW | unix.O_CLOEXEC

// maxLinks is the kernel's limit of links in a path.
const maxLinks = 40

// Open opens the file at a path for reading. Links may lead to its folder; it is none itself.
func Open(path string) (*os.File, error) {
	looked, err := os.OpenFile(path, look, 0)
	if err != nil {
		return nil, err
	}
	defer looked.Close()
	return Looked(looked, path)
}

// At opens the file of a name in an open folder for reading.
func At(dir *os.File, name string) (*os.File, error) {
	path := filepath.Join(dir.Name(), name)
	fd, err := again(func() (int, error) { return unix.Openat(int(dir.Fd()), name, look, 0) })
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	looked := os.NewFile(uintptr(fd), path)
	defer looked.Close()
	return Looked(looked, path)
}

// In opens the file at a path below an open folder for reading. Links may lead to it, and none leads out of the folder.
func In(root *os.Root, path string) (*os.File, error) {
	whole := filepath.Join(root.Name(), path)
	for range maxLinks {
		looked, err := root.OpenFile(path, look, 0)
		if err != nil {
			return nil, err
		}
		info, err := looked.Stat()
		if err == nil && info.Mode()&fs.ModeSymlink == 0 {
			defer looked.Close()
			return Looked(looked, whole)
		}
		_ = looked.Close()
		if err != nil {
			return nil, err
		}
		target, err := root.Readlink(path)
		if err != nil {
			return nil, err
		}
		if filepath.IsAbs(target) {
			path = target // root says what is wrong with it
		} else {
			path = path[:strings.LastIndex(path, "/")+1] + target // not cleaned: links are followed before each ".."
		}
	}
	return nil, &fs.PathError{Op: "open", Path: whole, Err: unix.ELOOP}
}

// Looked opens for reading what a descriptor with O_PATH shows; path is for errors and the file's name.
func Looked(at *os.File, path string) (*os.File, error) {
	info, err := at.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, &fs.PathError{Op: "open", Path: path, Err: ErrNotRegular}
	}
	// O_NONBLOCK, because the file's owner may hold a lease of it, for which an open waits.
	fd, err := again(func() (int, error) {
		return unix.Open(fmt.Sprintf("/proc/self/fd/%d", at.Fd()), unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	})
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	return os.NewFile(uintptr(fd), path), nil
}

// again opens until no signal interrupts it.
func again(open func() (int, error)) (fd int, err error) {
	for {
		if fd, err = open(); !errors.Is(err, unix.EINTR) {
			return fd, err
		}
	}
}
