package diskusage

import (
	"errors"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/microlet/microlet/services/internal/samemount"
)

const (
	// openLevels is how many nested folders of a walk are open. Those below are opened again, one at a time.
	openLevels = 64
	// maxLevels bounds the depth, since each level takes memory. What is deeper counts as unread.
	maxLevels = 1 << 14
	// maxEntries ends a walk that would never end because a pod adds files faster than they are counted.
	maxEntries = 1 << 25
	// readAtOnce is the buffer for the entries of one folder.
	readAtOnce = 16 << 10

	pathFlags = unix.O_PATH | unix.O_NOFOLLOW | unix.O_CLOEXEC

	statMask = unix.STATX_TYPE | unix.STATX_NLINK | unix.STATX_INO | unix.STATX_BLOCKS
)

// walk measures one directory, a slice at a time. Its caller closes it.
type walk struct {
	mode Mode
	// open opens a folder in an open one on the same mount.
	open func(parent int, name string) (int, error)
	// levels are the folders from the top to the one that is being read, which is open.
	levels []level
	// device of the top. A subvolume has another one although it is no mount; the kubelet leaves it out, too.
	major, minor uint32
	fs           unix.Statfs_t
	mountRoot    bool
	tally        tally
	unread       uint64
	entries      int
	// spare are buffers of levels that were left.
	spare [][]byte
}

// level is a folder of a walk.
type level struct {
	// fd is -1 while a level below is read, if the level is none of the first openLevels.
	fd    int
	inode uint64
	// next is the position after the last entry that was looked at.
	next int64
	// rest are entries that were read and not looked at yet, a part of buf. Both are nil when fd is -1.
	rest, buf []byte
}

// newWalk opens what is to be measured.
func newWalk(d Dir) (*walk, error) {
	w := &walk{mode: d.Mode, open: samemount.Open}
	fd, err := openPath(d.Path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = unix.Close(fd) }() // an O_PATH descriptor: nothing can fail
	if err := samemount.IgnoringEINTR(func() error { return unix.Fstatfs(fd, &w.fs) }); err != nil {
		return nil, err
	}
	if w.mode == FileSystem {
		return w, nil
	}
	stat, err := statOf(fd)
	if err != nil {
		return nil, err
	}
	w.major, w.minor = stat.Dev_major, stat.Dev_minor
	w.mountRoot = stat.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0
	directory := stat.Mode&unix.S_IFMT == unix.S_IFDIR
	switch {
	case w.mode == Files && !directory:
		return nil, unix.ENOTDIR
	case w.mode == Tree:
		w.count(stat)
	}
	if !directory {
		return w, nil
	}
	top, err := w.open(fd, ".")
	if err != nil {
		return nil, err
	}
	w.levels = append(w.levels, level{fd: top, inode: stat.Ino})
	return w, nil
}

// openPath opens an absolute path in which nothing is a link, without a right to read it.
func openPath(path string) (int, error) {
	fd, err := unix.Open("/", pathFlags|unix.O_DIRECTORY, 0)
	if err != nil {
		return -1, err
	}
	names := strings.Split(strings.TrimPrefix(filepath.Clean(path), "/"), "/")
	for i, name := range names {
		if name == "" { // the path is the root
			break
		}
		flags := pathFlags
		if i < len(names)-1 {
			flags |= unix.O_DIRECTORY
		}
		var next int
		err := samemount.IgnoringEINTR(func() (err error) {
			next, err = unix.Openat(fd, name, flags, 0)
			return err
		})
		_ = unix.Close(fd)
		if err != nil {
			return -1, err
		}
		fd = next
	}
	return fd, nil
}

// step looks at up to limit entries, but for no longer than the deadline allows, and reports whether that was all.
func (w *walk) step(limit int, deadline time.Time) (entries int, done bool) {
	for len(w.levels) > 0 {
		if w.entries >= maxEntries {
			w.unread++
			w.close()
			break
		}
		// At every entry, because on slow storage each may take many milliseconds.
		if entries >= limit || entries > 0 && !time.Now().Before(deadline) {
			return entries, false
		}
		if w.advance() {
			entries++
			w.entries++
		}
	}
	return entries, true
}

// advance looks at the next entry, or leaves the folder after the last. It reports whether there was an entry.
func (w *walk) advance() bool {
	here := &w.levels[len(w.levels)-1]
	if len(here.rest) == 0 {
		more, err := w.fill(here)
		if err != nil {
			w.unread++
		}
		if !more {
			w.leave()
			return false
		}
	}
	e, rest, err := nextDirent(here.rest)
	if err != nil {
		w.unread++
		w.leave()
		return false
	}
	here.rest, here.next = rest, e.next
	if name := string(e.name); name != "." && name != ".." {
		w.look(here.fd, e.kind, name)
		return true
	}
	return false
}

// fill reads entries of the level's folder. One that was removed meanwhile has no more.
func (w *walk) fill(l *level) (more bool, err error) {
	if l.buf == nil {
		l.buf = w.buffer()
	}
	var n int
	err = samemount.IgnoringEINTR(func() (err error) {
		n, err = unix.Getdents(l.fd, l.buf)
		return err
	})
	if errors.Is(err, unix.ENOENT) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	l.rest = l.buf[:n]
	return n > 0, nil
}

// look counts an entry of the folder, and enters it if it is a folder itself.
func (w *walk) look(parent int, kind byte, name string) {
	if kind == unix.DT_DIR || kind == unix.DT_UNKNOWN {
		if w.mode == Files && kind == unix.DT_DIR {
			return
		}
		err := w.enter(parent, name)
		// With an unknown kind, these say that it is no folder. With a known one, that it was exchanged for something else.
		if !errors.Is(err, unix.ENOTDIR) && !errors.Is(err, unix.ELOOP) {
			return
		}
	}
	var stat unix.Statx_t
	err := samemount.IgnoringEINTR(func() error {
		return unix.Statx(parent, name, unix.AT_SYMLINK_NOFOLLOW|unix.AT_NO_AUTOMOUNT, statMask, &stat)
	})
	// What vanished since it was listed counts nothing. What was exchanged for a folder is counted the next time.
	if err != nil || stat.Mode&unix.S_IFMT == unix.S_IFDIR || !w.same(&stat) {
		return
	}
	w.count(&stat)
}

// enter opens a folder and makes it the level that is read. What is mounted there is not entered, nor counted.
func (w *walk) enter(parent int, name string) error {
	fd, err := w.open(parent, name)
	switch {
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.EXDEV), errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.ELOOP):
		return err
	case err != nil:
		w.unread++
		return err
	}
	stat, err := statOf(fd)
	if err != nil || !w.same(stat) || w.mode == Files {
		_ = unix.Close(fd)
		return err
	}
	w.count(stat)
	if len(w.levels) >= maxLevels {
		w.unread++
		_ = unix.Close(fd)
		return nil
	}
	if i := len(w.levels) - 1; i >= openLevels {
		w.shut(&w.levels[i])
	}
	w.levels = append(w.levels, level{fd: fd, inode: stat.Ino})
	return nil
}

// leave goes back to the folder above.
func (w *walk) leave() {
	last := len(w.levels) - 1
	fd := w.levels[last].fd
	if above := last - 1; above >= 0 && w.levels[above].fd < 0 {
		w.reopen(&w.levels[above], fd)
	}
	w.shut(&w.levels[last])
	w.levels = w.levels[:last]
	// A folder that could not be opened again was moved. So were those that it was reached by, or they were not:
	// the walk goes on in one that is still open.
	for i := len(w.levels) - 1; i >= 0 && w.levels[i].fd < 0; i-- {
		w.unread++
		w.levels = w.levels[:i]
	}
}

// reopen opens the folder above an open one, where the walk came from, and goes on after the last entry. It stays
// closed if that is another folder now.
func (w *walk) reopen(above *level, fd int) {
	up, err := w.open(fd, "..")
	if err != nil {
		return
	}
	stat, err := statOf(up)
	if err == nil && w.same(stat) && stat.Ino == above.inode {
		if _, err = unix.Seek(up, above.next, unix.SEEK_SET); err == nil {
			above.fd = up
			return
		}
	}
	_ = unix.Close(up)
}

func (w *walk) count(s *unix.Statx_t) {
	w.tally.add(s.Ino, s.Nlink, s.Blocks, s.Mode&unix.S_IFMT == unix.S_IFDIR)
}

// same reports whether it is on the top's device, and not what another mount has there.
func (w *walk) same(s *unix.Statx_t) bool {
	return s.Dev_major == w.major && s.Dev_minor == w.minor && s.Attributes&unix.STATX_ATTR_MOUNT_ROOT == 0
}

// shut closes the level's folder.
func (w *walk) shut(l *level) {
	if l.fd >= 0 {
		_ = unix.Close(l.fd) // it was read only
	}
	if l.buf != nil {
		w.spare = append(w.spare, l.buf)
	}
	l.fd, l.rest, l.buf = -1, nil, nil
}

func (w *walk) buffer() []byte {
	if last := len(w.spare) - 1; last >= 0 {
		buf := w.spare[last]
		w.spare = w.spare[:last]
		return buf
	}
	return make([]byte, readAtOnce)
}

// close ends the walk wherever it is.
func (w *walk) close() {
	for i := range w.levels {
		w.shut(&w.levels[i])
	}
	w.levels, w.spare = nil, nil
}

// usage is what was seen so far.
func (w *walk) usage() Usage {
	size := uint64(w.fs.Bsize)
	u := Usage{
		CapacityBytes:  w.fs.Blocks * size,
		AvailableBytes: w.fs.Bavail * size,
		Inodes:         w.fs.Files,
		InodesFree:     w.fs.Ffree,
		Unread:         w.unread,
		MountRoot:      w.mountRoot,
	}
	if w.mode == FileSystem {
		// A FUSE server may say that more is free than there is.
		u.UsedBytes = (w.fs.Blocks - min(w.fs.Bfree, w.fs.Blocks)) * size
		u.InodesUsed = w.fs.Files - min(w.fs.Ffree, w.fs.Files)
		return u
	}
	u.UsedBytes, u.InodesUsed = w.tally.usage()
	return u
}

func statOf(fd int) (*unix.Statx_t, error) {
	var stat unix.Statx_t
	err := samemount.IgnoringEINTR(func() error {
		return unix.Statx(fd, "", unix.AT_EMPTY_PATH, statMask, &stat)
	})
	return &stat, err
}
