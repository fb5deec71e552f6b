package logrotate

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
	"time"

	"golang.org/x/sys/unix"

	"github.com/microlet/microlet/services/internal/regularfile"
)

// The kubelet's names: what follows the log's own.
const (
	timeFormat = "20060102-150405"
	compressed = ".gz"
	temporary  = ".tmp"
)

// errMissing says that there is no log at a container's log path.
var errMissing = errors.New("the log is missing")

// file is the path of a container's present log.
type file string

func (f file) size() (int64, error) {
	info, err := os.Stat(string(f))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return 0, errMissing
	case err != nil:
		return 0, fmt.Errorf("size of the log: %w", err)
	}
	return info.Size(), nil
}

// older returns the rotated logs, oldest first, and what earlier rotations left behind: files
// that were being written, and logs whose compressed form is complete.
func (f file) older() (logs, leftovers []string, err error) {
	entries, err := os.ReadDir(filepath.Dir(string(f)))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil, nil
	}
	if err != nil {
		return nil, nil, fmt.Errorf("rotated logs: %w", err)
	}
	var names []string
	for _, e := range entries { // in the order of their names, which is that of their times
		if strings.HasPrefix(e.Name(), filepath.Base(string(f))+".") && e.Type().IsRegular() {
			names = append(names, filepath.Join(filepath.Dir(string(f)), e.Name()))
		}
	}
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
func (f file) tidy(keep int) error {
	logs, leftovers, err := f.older()
	if err != nil {
		return err
	}
	excess := max(len(logs)-max(keep, 0), 0)
	for _, name := range append(leftovers, logs[:excess]...) {
		if err := remove(name); err != nil {
			return err
		}
	}
	return nil
}

func remove(name string) error {
	if err := os.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove an old log: %w", err)
	}
	return nil
}

// compress compresses the rotated logs that are not yet. The present log's last predecessor is
// among them only when the present one is about to join them.
func (f file) compress(ctx context.Context) error {
	logs, _, err := f.older()
	errs := []error{err}
	for _, name := range logs {
		if !strings.HasSuffix(name, compressed) {
			errs = append(errs, compressOne(ctx, name))
		}
	}
	return errors.Join(errs...)
}

// compressOne puts a complete compressed file in the place of a log. Until then the log
// stays, and so it does if anything fails.
func compressOne(ctx context.Context, name string) (err error) {
	from, err := regularfile.Open(name)
	if err != nil {
		return fmt.Errorf("compress a log: %w", err)
	}
	defer from.Close() // only read
	info, err := from.Stat()
	if err != nil {
		return fmt.Errorf("compress a log: %w", err)
	}
	half := name + temporary
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("compress the log %s: %w", name, err), remove(half))
		}
	}()
	to, err := os.OpenFile(half, os.O_WRONLY|os.O_CREATE|os.O_TRUNC|unix.O_NOFOLLOW, info.Mode().Perm())
	if err != nil {
		return err
	}
	zip := gzip.NewWriter(to)
	_, err = io.Copy(zip, &interruptible{ctx, from})
	// Synced, since the log is removed next and a power cut must leave one of the two.
	if err = errors.Join(err, zip.Close(), to.Sync(), to.Close()); err != nil {
		return err
	}
	if err := os.Rename(half, name+compressed); err != nil {
		return err
	}
	if err := os.Remove(name); errors.Is(err, fs.ErrNotExist) {
		return remove(name + compressed) // the container was removed meanwhile, with its logs
	} else if err != nil {
		return err
	}
	return nil
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
func (f file) moveAway(now time.Time) (string, error) {
	rotated := string(f) + "." + now.Format(timeFormat)
	if err := moveUnlessThere(string(f), rotated); err != nil {
		return "", fmt.Errorf("rename the log: %w", err)
	}
	return rotated, nil
}

// moveBack undoes moveAway after the runtime did not reopen the log. If there is a new log
// nevertheless, the runtime did it late: then both stay as they are.
func (f file) moveBack(rotated string) error {
	err := moveUnlessThere(rotated, string(f))
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
func (f file) restore() error {
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
func moveUnlessThere(from, to string) error {
	err := unix.Renameat2(unix.AT_FDCWD, from, unix.AT_FDCWD, to, unix.RENAME_NOREPLACE)
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOSYS) { // a file system that cannot do so
		if _, err := os.Lstat(to); !errors.Is(err, fs.ErrNotExist) {
			return &os.LinkError{Op: "rename", Old: from, New: to, Err: errors.Join(err, fs.ErrExist)}
		}
		return os.Rename(from, to)
	}
	if err != nil {
		return &os.LinkError{Op: "rename", Old: from, New: to, Err: err}
	}
	return nil
}
