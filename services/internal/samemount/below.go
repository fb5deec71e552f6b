package samemount

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/microlet/microlet/services/internal/regularfile"
)

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

// RegularFile opens the file at a relative path below a root for reading, as Folder does a folder. For anything else
// than a regular file the error is regularfile.ErrNotRegular, and it is not opened.
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
	looked := os.NewFile(uintptr(fd), whole)
	defer looked.Close()
	return regularfile.Looked(looked, whole)
}
