package removal

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/microlet/microlet/services/internal/samemount"
)

const (
	// namesAtOnce bounds how many names of one folder are held in memory.
	namesAtOnce = 1024
	// shownPath is how much of a path an error shows: nested folders make it as long as they like.
	shownPath = 200
)

// Tree removes what is at the path with all that is below it. Symbolic links in the folders above
// are followed. What is gone already is success; a link is removed, not followed. A mount point is
// an error, and stays as it is with all that is mounted there. The removal stops when ctx ends.
func Tree(ctx context.Context, path string) error {
	if name := filepath.Base(path); name == "." || name == ".." || name == "/" {
		return fmt.Errorf("remove %q: it must end with a folder's name", path)
	}
	parent, err := os.Open(filepath.Dir(path))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { _ = parent.Close() }() // nothing was written to it
	t := &tree{ctx: ctx, path: path, open: samemount.Open}
	return t.remove(int(parent.Fd()), filepath.Base(path))
}

// tree is one removal. It goes down into the first folder that it finds and up again when that is
// empty, with one folder open at a time.
type tree struct {
	ctx  context.Context
	path string
	open func(parent int, name string) (int, error)
	// above are the folders from the top to the one that is open.
	above []folder
	// beforeDescent is called before a folder is opened; tests change it then.
	beforeDescent func(name string)
}

// folder is what is known of an open folder, or of one above it.
type folder struct {
	name     string
	dev, ino uint64
	// names were read and not tried yet.
	names []string
}

func (t *tree) remove(parent int, name string) error {
	if gone, err := t.unlink(parent, name); gone || err != nil {
		return err
	}
	fd, err := t.descend(parent, name)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }() // the one that is open at the end
	for {
		if err := context.Cause(t.ctx); err != nil {
			return fmt.Errorf("remove %s: %w", t.path, err)
		}
		here := &t.above[len(t.above)-1]
		if len(here.names) == 0 {
			if here.names, err = namesIn(fd); err != nil {
				return t.fails("list", "", err)
			}
		}
		if len(here.names) == 0 {
			done, up, err := t.ascend(fd, parent)
			if done || err != nil {
				return err
			}
			_ = unix.Close(fd)
			fd = up
			continue
		}
		next := here.names[len(here.names)-1]
		here.names = here.names[:len(here.names)-1]
		gone, err := t.unlink(fd, next)
		if err != nil {
			return err
		}
		if gone {
			continue
		}
		below, err := t.descend(fd, next)
		if errors.Is(err, unix.ENOENT) {
			continue
		}
		if errors.Is(err, unix.ELOOP) || errors.Is(err, unix.ENOTDIR) { // it was exchanged for something else
			here.names = append(here.names, next)
			continue
		}
		if err != nil {
			return err
		}
		_ = unix.Close(fd)
		fd = below
	}
}

// unlink removes what is not a folder; gone is false if it is one.
func (t *tree) unlink(parent int, name string) (gone bool, err error) {
	err = samemount.IgnoringEINTR(func() error { return unix.Unlinkat(parent, name, 0) })
	switch {
	case err == nil, errors.Is(err, unix.ENOENT):
		return true, nil
	case errors.Is(err, unix.EISDIR):
		return false, nil
	case errors.Is(err, unix.EPERM):
		// What POSIX has a file system say of a folder, too.
		var stat unix.Stat_t
		if unix.Fstatat(parent, name, &stat, unix.AT_SYMLINK_NOFOLLOW) == nil && stat.Mode&unix.S_IFMT == unix.S_IFDIR {
			return false, nil
		}
	}
	return false, t.fails("remove", name, err)
}

// descend opens a folder and makes it the one that is being emptied.
func (t *tree) descend(parent int, name string) (int, error) {
	if t.beforeDescent != nil {
		t.beforeDescent(name)
	}
	fd, err := t.open(parent, name)
	if err != nil {
		return -1, t.fails("open", name, err)
	}
	var stat unix.Stat_t
	if err := unix.Fstat(fd, &stat); err != nil {
		_ = unix.Close(fd)
		return -1, t.fails("look at", name, err)
	}
	t.above = append(t.above, folder{name: name, dev: stat.Dev, ino: stat.Ino})
	return fd, nil
}

// ascend removes the open folder, which is empty, and opens the one above. That must be the one
// from which the way led down: a folder that was moved meanwhile has another.
func (t *tree) ascend(fd, top int) (done bool, up int, err error) {
	empty := t.above[len(t.above)-1]
	if len(t.above) == 1 {
		if err := rmdir(top, empty.name); err != nil {
			return false, -1, t.fails("remove", "", err)
		}
		return true, -1, nil
	}
	if up, err = t.open(fd, ".."); err != nil {
		return false, -1, t.fails("leave", "", err)
	}
	var stat unix.Stat_t
	above := &t.above[len(t.above)-2]
	if err = unix.Fstat(up, &stat); err == nil && (stat.Dev != above.dev || stat.Ino != above.ino) {
		err = errors.New("it was moved meanwhile")
	}
	if err == nil {
		err = rmdir(up, empty.name)
	}
	if errors.Is(err, unix.ENOTDIR) { // it was exchanged for something else
		above.names, err = append(above.names, empty.name), nil
	}
	if err != nil {
		_ = unix.Close(up)
		return false, -1, t.fails("remove", "", err)
	}
	t.above = t.above[:len(t.above)-1]
	return false, up, nil
}

func rmdir(parent int, name string) error {
	err := samemount.IgnoringEINTR(func() error { return unix.Unlinkat(parent, name, unix.AT_REMOVEDIR) })
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	return err
}

// fails says what could not be done with the name in the open folder, or with that itself.
func (t *tree) fails(what, name string, err error) error {
	if errors.Is(err, unix.EXDEV) || errors.Is(err, unix.EBUSY) {
		err = fmt.Errorf("it is a mount point: %w", err)
	}
	path := filepath.Dir(t.path)
	for _, f := range t.above {
		if len(path) > shownPath {
			break
		}
		path = filepath.Join(path, f.name)
	}
	if path = filepath.Join(path, name); len(path) > shownPath {
		path = strings.ToValidUTF8(path[:shownPath], "") + fmt.Sprintf("… (%d folders deep)", len(t.above))
	}
	return fmt.Errorf("%s %s: %w", what, path, err)
}

// namesIn reads some names from the beginning of the folder; none says that it is empty.
func namesIn(fd int) ([]string, error) {
	if _, err := unix.Seek(fd, 0, unix.SEEK_SET); err != nil {
		return nil, err
	}
	buf := make([]byte, 32<<10)
	var names []string
	for len(names) < namesAtOnce {
		n, err := unix.ReadDirent(fd, buf)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return nil, err
		}
		if n == 0 {
			break
		}
		_, _, names = unix.ParseDirent(buf[:n], -1, names)
	}
	return names, nil
}
