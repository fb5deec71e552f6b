package volumes

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// errOwn is the error of a path that leads into the node agent's own folder.
var errOwn = errors.New("is in the node agent's own folder")

// keepOut returns a check for each folder on a path, which refuses the node agent's own folder by its device and inode.
// With an empty own it refuses none. Admission has checked the text of the path; this is the second check.
func keepOut(own string) (func(fd int) error, error) {
	var is unix.Stat_t
	none := own == ""
	if !none {
		err := unix.Stat(own, &is)
		if none = errors.Is(err, unix.ENOENT); err != nil && !none {
			return nil, &fs.PathError{Op: "stat", Path: own, Err: err}
		}
	}
	if none {
		return func(int) error { return nil }, nil
	}
	return func(fd int) error {
		var at unix.Stat_t
		if err := unix.Fstat(fd, &at); err != nil {
			return err
		}
		if at.Dev == is.Dev && at.Ino == is.Ino {
			return errOwn
		}
		return nil
	}, nil
}

// reaches returns why a pod may not have what is, or is to be made, at a path of the node. It holds for the path as it
// is now. If a process exchanges a link on the way before the path is used, only the modes of files and the checks of
// peers protect the folder.
func reaches(own, path string) error {
	folder, _, err := locate(own, path)
	if err == nil {
		err = folder.Close()
	}
	return err
}

// locate opens the folder that a path leads to, or the folder of the file, or as much of the way as there is. It
// returns the names that are missing. It resolves the links first and then opens name by name what has no links: a
// link that another process puts into the way meanwhile is an error.
func locate(own, path string) (folder *os.File, missing []string, err error) {
	keep, err := keepOut(own)
	if err != nil {
		return nil, nil, err
	}
	if path, err = filepath.Abs(path); err != nil {
		return nil, nil, err
	}
	real, rest, err := existing(path)
	if err != nil {
		return nil, nil, err
	}
	missing = strings.FieldsFunc(rest, func(r rune) bool { return r == '/' })
	fd, err := openWithoutLinks(real, keep)
	if errors.Is(err, unix.ENOTDIR) && len(missing) == 0 {
		real, path = filepath.Dir(real), filepath.Dir(path)
		fd, err = openWithoutLinks(real, keep)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("%s %w", path, err)
	}
	return os.NewFile(uintptr(fd), real), missing, nil
}

// existing resolves the links of as much of an absolute path as there is, and returns the rest of it.
func existing(path string) (real, missing string, err error) {
	for at := filepath.Clean(path); ; at = filepath.Dir(at) {
		real, err := filepath.EvalSymlinks(at)
		if err == nil {
			return real, strings.TrimPrefix(filepath.Clean(path), at), nil
		}
		if !errors.Is(err, fs.ErrNotExist) || at == "/" || at == "." {
			return "", "", err
		}
	}
}

// makeAt makes folders, or folders and a file, where a path leads that is not there yet. What has come there meanwhile
// stays as it is. It follows no link that is new on the way.
func makeAt(own, path string, file bool) (err error) {
	folder, missing, err := locate(own, path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, folder.Close()) }()
	if len(missing) == 0 {
		return nil
	}
	// Links of /proc lead where their text does not say.
	there, err := os.Stat(strings.TrimSuffix(filepath.Clean(path), "/"+filepath.Join(missing...)) + "/")
	if err != nil {
		return err
	}
	if is, err := folder.Stat(); err != nil || !os.SameFile(is, there) {
		return errors.Join(fmt.Errorf("%s leads elsewhere than its links say", path), err)
	}
	if file && len(missing) > 1 {
		return &fs.PathError{Op: "open", Path: path, Err: unix.ENOENT}
	}
	if !file {
		return makeFolders(folder, missing, 0o755)
	}
	const flags = unix.O_CREAT | unix.O_EXCL | unix.O_NOFOLLOW | unix.O_WRONLY | unix.O_CLOEXEC
	fd, err := unix.Openat(int(folder.Fd()), missing[0], flags, 0o644)
	if err != nil {
		return &fs.PathError{Op: "open", Path: path, Err: err}
	}
	return unix.Close(fd)
}
