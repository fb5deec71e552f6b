package samemount

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// ErrNotRegular is the error of RegularFile for a folder, a link, a FIFO or a device.
var ErrNotRegular = errors.New("it is not a regular file")

// Folder opens the folder at a relative path below a root. Links and mounts may lead to the root. Below it, each is an
// error, as of Open.
func Folder(root, path string) (*os.File, error) { return folder(opener(), root, path) }

func folder(open openFunc, root, path string) (*os.File, error) {
	whole := filepath.Join(root, path)
	if !filepath.IsLocal(path) {
		return nil, &fs.PathError{Op: "open", Path: whole, Err: fmt.Errorf("it is not below %s", root)}
	}
	var fd int
	err := IgnoringEINTR(func() (err error) {
		fd, err = unix.Open(root, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		return err
	})
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: root, Err: err}
	}
	for name := range strings.SplitSeq(filepath.Clean(path), "/") {
		if name == "." {
			continue
		}
		next, err := open(fd, name, folderFlags)
		_ = unix.Close(fd)
		if err != nil {
			return nil, &fs.PathError{Op: "open", Path: whole, Err: err}
		}
		fd = next
	}
	return os.NewFile(uintptr(fd), whole), nil
}

// RegularFile opens the file at a relative path below a root for reading, as Folder does a folder. It looks what the
// file is before it opens it, so that it neither waits for a FIFO nor starts a device.
func RegularFile(root, path string) (*os.File, error) { return regularFile(opener(), root, path) }

func regularFile(open openFunc, root, path string) (*os.File, error) {
	path = filepath.Clean(path)
	parent, err := folder(open, root, filepath.Dir(path))
	if err != nil {
		return nil, err
	}
	defer parent.Close()
	whole := filepath.Join(root, path)
	fail := func(err error) (*os.File, error) { return nil, &fs.PathError{Op: "open", Path: whole, Err: err} }
	if !filepath.IsLocal(path) {
		return fail(fmt.Errorf("it is not below %s", root))
	}
	fd, err := open(int(parent.Fd()), filepath.Base(path), lookFlags)
	if err != nil {
		return fail(err)
	}
	defer func() { _ = unix.Close(fd) }()
	var is unix.Stat_t
	if err := IgnoringEINTR(func() error { return unix.Fstat(fd, &is) }); err != nil {
		return fail(err)
	}
	if is.Mode&unix.S_IFMT != unix.S_IFREG {
		return fail(ErrNotRegular)
	}
	// This is the file that was looked at, whatever has its name by now.
	var opened int
	err = IgnoringEINTR(func() (err error) {
		opened, err = unix.Open(fmt.Sprintf("/proc/self/fd/%d", fd), unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
		return err
	})
	if err != nil {
		return fail(err)
	}
	return os.NewFile(uintptr(opened), whole), nil
}
