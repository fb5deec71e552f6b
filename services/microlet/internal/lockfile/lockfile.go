// Package lockfile holds the lock of --lock-file, by which two node agents take turns on a machine.
package lockfile

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/utils/inotify"
)

// retry is how often a lock that another process holds is tried again.
const retry = 100 * time.Millisecond

// ErrContended says that another process wants the lock.
var ErrContended = errors.New("another process opened or removed the lock file")

// Lock is a lock that is held until Release, or until the process ends.
type Lock struct {
	path    string
	file    *os.File
	watcher *inotify.Watcher // nil unless contention is watched
}

// Acquire creates the file if need be and waits for its lock until ctx ends. The lock is that of flock(2), as the
// kubelet's. It calls waiting once if another process holds it. With watch set, Contended reports contention.
func Acquire(ctx context.Context, path string, watch bool, waiting func()) (*Lock, error) {
	for reported := false; ; {
		l, err := try(path, watch)
		if err == nil {
			return l, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("--lock-file=%s: %w", path, err)
		}
		if !reported {
			waiting()
			reported = true
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("--lock-file=%s: another process holds the lock: %w", path, context.Cause(ctx))
		case <-time.After(retry):
		}
	}
}

// try takes the lock if it is free. The file may have been replaced in the meantime: then others lock another one.
func try(path string, watch bool) (_ *Lock, err error) {
	l := &Lock{path: path}
	l.file, err = os.OpenFile(path, os.O_CREATE|os.O_RDWR|unix.O_NONBLOCK, 0o600)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, l.Release())
		}
	}()
	if err := unix.Flock(int(l.file.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return nil, err
	}
	if watch {
		if l.watcher, err = watched(path); err != nil {
			return nil, err
		}
	}
	return l, l.current()
}

// current is an error if the path is not the locked file any more.
func (l *Lock) current() error {
	held, err := l.file.Stat()
	if err != nil {
		return err
	}
	if !held.Mode().IsRegular() {
		return errors.New("it is no regular file: name another one")
	}
	now, err := os.Stat(l.path)
	if errors.Is(err, fs.ErrNotExist) || err == nil && !os.SameFile(held, now) {
		return unix.EWOULDBLOCK
	}
	return err
}

func watched(path string) (*inotify.Watcher, error) {
	w, err := inotify.NewWatcher()
	if err != nil {
		return nil, fmt.Errorf("watch: %w", err)
	}
	// The kernel does not report the deletion of a file that is open, but the change of its number of links.
	if err := w.AddWatch(path, inotify.InOpen|inotify.InAttrib|inotify.InMoveSelf); err != nil {
		return nil, errors.Join(fmt.Errorf("watch: %w", err), w.Close())
	}
	return w, nil
}

// Contended waits until another process opens or removes the file, and returns ErrContended, or why that cannot be
// known any more. When ctx ends first, it returns nil. It is for a Lock that watches.
func (l *Lock) Contended(ctx context.Context) error {
	for {
		select {
		case event := <-l.watcher.Event:
			if event.Mask&inotify.InOpen != 0 || l.current() != nil {
				return ErrContended
			}
		case err := <-l.watcher.Error:
			return fmt.Errorf("watch the lock file: %w", err)
		case <-ctx.Done():
			return nil
		}
	}
}

// Release lets another process have the lock. No Contended may run any more.
func (l *Lock) Release() error {
	var err error
	if l.watcher != nil {
		err = l.watcher.Close()
		for open := true; open; { // until its reader has ended
			select {
			case _, open = <-l.watcher.Event:
			case <-l.watcher.Error:
			}
		}
	}
	return errors.Join(err, l.file.Close())
}
