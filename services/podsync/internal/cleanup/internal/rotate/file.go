package rotate

import (
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/microlet/microlet/services/internal/regularfile"
	"github.com/microlet/microlet/services/internal/samemount"
)

// The kubelet's names: what follows the log's own.
const (
	timeFormat = "20060102-150405"
	compressed = ".gz"
	temporary  = ".tmp"
)

// errMissing says that there is no log at a container's log path.
var errMissing = errors.New("the log is missing")

// errSparse says that next to nothing of a log is on the disk.
var errSparse = errors.New("it is a file of holes")

// file is a container's present log: its name in the folder, which is open. Links and mounts lead to the folder of all
// logs, and from there on to nothing.
type file struct {
	dir  *os.File
	name string
}

// open opens the folder of a log. The path of a log is <folder of all logs>/<pod>/<container>/<name>. errMissing says
// that it is not there.
func open(path string) (*file, error) {
	container, name := filepath.Split(filepath.Clean(path))
	pod := filepath.Dir(filepath.Clean(container))
	dir, err := samemount.Folder(filepath.Dir(pod), filepath.Join(filepath.Base(pod), filepath.Base(container)))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, errMissing
	}
	if err != nil {
		return nil, fmt.Errorf("folder of the log: %w", err)
	}
	return &file{dir, name}, nil
}

func (f *file) close() { _ = f.dir.Close() } // its files are closed one by one

func (f *file) at() int { return int(f.dir.Fd()) }

// failed says what could not be done to a file of the folder.
func (f *file) failed(op, name string, err error) error {
	return &fs.PathError{Op: op, Path: filepath.Join(f.dir.Name(), name), Err: err}
}

func (f *file) size() (int64, error) {
	var info unix.Stat_t
	err := unix.Fstatat(f.at(), f.name, &info, unix.AT_SYMLINK_NOFOLLOW)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return 0, errMissing
	case err == nil && info.Mode&unix.S_IFMT != unix.S_IFREG:
		err = regularfile.ErrNotRegular
	}
	if err != nil {
		return 0, fmt.Errorf("size of the log: %w", f.failed("stat", f.name, err))
	}
	return info.Size, nil
}

// older returns the names of the rotated logs, oldest first, and of what earlier rotations left behind: files that were
// being written, and logs with a complete compressed form.
func (f *file) older() (logs, leftovers []string, err error) {
	var entries []fs.DirEntry
	if _, err = f.dir.Seek(0, io.SeekStart); err == nil {
		entries, err = f.dir.ReadDir(-1)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("rotated logs: %w", err)
	}
	var names []string
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), f.name+".") && e.Type().IsRegular() {
			names = append(names, e.Name())
		}
	}
	slices.Sort(names) // the order of their times
	for _, name := range names {
		if strings.HasSuffix(name, temporary) || slices.Contains(names, name+compressed) {
			leftovers = append(leftovers, name)
		} else {
			logs = append(logs, name)
		}
	}
	return logs, leftovers, nil
}

// tidy removes leftovers, and the oldest logs until keep are left.
func (f *file) tidy(keep int) error {
	logs, leftovers, err := f.older()
	if err != nil {
		return err
	}
	excess := max(len(logs)-max(keep, 0), 0)
	for _, name := range append(leftovers, logs[:excess]...) {
		if err := f.remove(name); err != nil {
			return err
		}
	}
	return nil
}

func (f *file) remove(name string) error {
	if err := unix.Unlinkat(f.at(), name, 0); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove an old log: %w", f.failed("unlink", name, err))
	}
	return nil
}

// tooLarge is how large a log may become that is compressed, however small logs are to be. One that grows by hundreds
// of megabytes a second would take minutes, for which the logs of all other containers would wait.
const tooLarge = 256 << 20

// compress compresses the rotated logs that are not yet, but for those that have become much larger than they were to
// be. The present log's last predecessor is among them only when the present one is about to join them.
func (f *file) compress(ctx context.Context, maxSize int64) error {
	logs, _, err := f.older()
	errs := []error{err}
	for _, name := range logs {
		if strings.HasSuffix(name, compressed) {
			continue
		}
		var stat unix.Stat_t
		err := unix.Fstatat(f.at(), name, &stat, unix.AT_SYMLINK_NOFOLLOW)
		if err == nil && stat.Size/2 > max(maxSize, tooLarge/2) {
			continue
		}
		errs = append(errs, f.compressOne(ctx, name)) // which says what is wrong with it
	}
	return errors.Join(errs...)
}

// compressOne puts a complete compressed file in the place of a log. Until then the log
// stays, and so it does if anything fails.
func (f *file) compressOne(ctx context.Context, name string) (err error) {
	from, err := regularfile.At(f.dir, name)
	if err != nil {
		return fmt.Errorf("compress a log: %w", err)
	}
	defer from.Close() // only read
	info, err := from.Stat()
	if err != nil {
		return fmt.Errorf("compress a log: %w", err)
	}
	if isSparse(info) {
		return fmt.Errorf("compress the log %s: %w", from.Name(), errSparse)
	}
	half := name + temporary
	to, err := f.create(half, info.Mode().Perm())
	if err != nil {
		return fmt.Errorf("compress a log: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("compress the log %s: %w", from.Name(), err), f.remove(half))
		}
	}()
	zip := gzip.NewWriter(to)
	_, err = io.Copy(zip, &interruptible{ctx, from})
	// Synced, since the log is removed next and a power cut must leave one of the two.
	if err = errors.Join(err, zip.Close(), to.Sync(), to.Close()); err != nil {
		return err
	}
	if err := unix.Renameat(f.at(), half, f.at(), name+compressed); err != nil {
		return f.failed("rename", half, err)
	}
	if err := unix.Unlinkat(f.at(), name, 0); errors.Is(err, fs.ErrNotExist) {
		return f.remove(name + compressed) // the container was removed meanwhile, with its logs
	} else if err != nil {
		return f.failed("unlink", name, err)
	}
	return nil
}

// isSparse reports whether a file has a thousand times as many bytes as it takes on the disk: to read it would take for
// ever. A file system that compresses makes a hundredth of a log at best.
func isSparse(info fs.FileInfo) bool {
	const blockSize, unit = 512, 1000
	stat, ok := info.Sys().(*syscall.Stat_t)
	return ok && info.Size()/unit > max(stat.Blocks, 1)*blockSize
}

// create makes a file that was not there.
func (f *file) create(name string, mode fs.FileMode) (*os.File, error) {
	var fd int
	err := samemount.IgnoringEINTR(func() (err error) {
		fd, err = unix.Openat(f.at(), name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_CLOEXEC, uint32(mode))
		return err
	})
	if err != nil {
		return nil, f.failed("create", name, err)
	}
	return os.NewFile(uintptr(fd), filepath.Join(f.dir.Name(), name)), nil
}

// interruptible ends a long read when its context ends.
type interruptible struct {
	ctx context.Context
	r   io.Reader
}

// Read implements io.Reader.
func (i *interruptible) Read(p []byte) (int, error) {
	if err := i.ctx.Err(); err != nil {
		return 0, err
	}
	return i.r.Read(p)
}

// moveAway gives the present log its name as a rotated one and returns it.
func (f *file) moveAway(now time.Time) (string, error) {
	rotated := f.name + "." + now.Format(timeFormat)
	if err := f.moveUnlessThere(f.name, rotated); err != nil {
		return "", fmt.Errorf("rename the log: %w", err)
	}
	return rotated, nil
}

// moveBack undoes moveAway after the runtime did not reopen the log. If there is a new log
// nevertheless, the runtime did it late: then both stay as they are.
func (f *file) moveBack(rotated string) error {
	err := f.moveUnlessThere(rotated, f.name)
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("put the log back: %w", err)
	}
	return nil
}

// restore gives a container that has ended its log back, if a rotation was cut short before
// the runtime opened a new one: without it kubectl logs would find nothing.
func (f *file) restore() error {
	if _, err := f.size(); !errors.Is(err, errMissing) {
		return err
	}
	logs, _, err := f.older()
	if err != nil || len(logs) == 0 || strings.HasSuffix(logs[len(logs)-1], compressed) {
		return err
	}
	return f.moveBack(logs[len(logs)-1])
}

// moveUnlessThere renames a file and never replaces another one.
func (f *file) moveUnlessThere(from, to string) error {
	err := unix.Renameat2(f.at(), from, f.at(), to, unix.RENAME_NOREPLACE)
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOSYS) { // a file system that cannot do so
		var there unix.Stat_t
		err = unix.Fstatat(f.at(), to, &there, unix.AT_SYMLINK_NOFOLLOW)
		switch {
		case err == nil:
			err = unix.EEXIST
		case errors.Is(err, fs.ErrNotExist):
			err = unix.Renameat(f.at(), from, f.at(), to)
		}
	}
	if err != nil {
		return f.failed("rename to "+to, from, err)
	}
	return nil
}
