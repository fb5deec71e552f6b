package up

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// maxStateFiles is more than a service keeps in its state folder.
const maxStateFiles = 64

// makeStateFolders makes the folders for what services keep over a reboot.
func (c *Config) makeStateFolders() error {
	for _, s := range c.Services {
		if s.StateDir == nil {
			continue
		}
		id, err := c.identity(s.Role)
		if err != nil {
			return err
		}
		if err := makeStateFolder(s.StateDir(), id.UID, id.GID); err != nil {
			return fmt.Errorf("state folder of %s: %w", s.Role, err)
		}
	}
	return nil
}

// makeStateFolder makes a folder for one user alone. Of another placement's, it hands over the files.
func makeStateFolder(dir string, uid, gid int) error {
	parent := filepath.Dir(dir)
	if err := os.MkdirAll(parent, 0o755); err != nil {
		return err
	}
	if uid != 0 {
		if err := checkReachable(dir); err != nil {
			return err
		}
	}
	root, err := os.OpenRoot(parent)
	if err != nil {
		return err
	}
	defer root.Close()
	name := filepath.Base(dir)
	if err := root.Mkdir(name, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	info, err := root.Lstat(name)
	if err != nil {
		return err
	}
	if !info.IsDir() {
		return fmt.Errorf("%s is no folder: move it", dir)
	}
	if !isOwner(info, uid) {
		// First the old owner, which may still run, is kept from changing what is in it.
		if err := errors.Join(root.Lchown(name, 0, 0), root.Chmod(name, 0o700)); err != nil {
			return err
		}
		if err := handOver(root, name, uid, gid); err != nil {
			return err
		}
	}
	return errors.Join(root.Lchown(name, uid, gid), root.Chmod(name, 0o700))
}

// handOver gives the files of a folder to another user. It leaves what has another name too, which may be a link of a
// service to a file of another user.
func handOver(root *os.Root, name string, uid, gid int) error {
	dir, err := root.Open(name)
	if err != nil {
		return err
	}
	defer dir.Close()
	entries, err := dir.ReadDir(maxStateFiles)
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	for _, e := range entries {
		info, err := e.Info()
		if err != nil {
			return err
		}
		if st, ok := info.Sys().(*syscall.Stat_t); ok && info.Mode().IsRegular() && st.Nlink == 1 {
			if err := root.Lchown(filepath.Join(name, e.Name()), uid, gid); err != nil {
				return err
			}
		}
	}
	return nil
}
