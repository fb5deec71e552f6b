package up

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/services/internal/atomicfile"
	"github.com/microlet/microlet/services/internal/bus"
	"github.com/microlet/microlet/services/internal/regularfile"
	"github.com/microlet/microlet/services/microlet/internal/placement"
)

const (
	// lockWait is how long a predecessor that was killed may take to be gone.
	lockWait  = 5 * time.Second
	lockRetry = 20 * time.Millisecond
)

// prepare makes the runtime folder what the services need, and keeps it to this process until
// release is called or the process ends. Some services run on demand: what starts them may listen on their sockets.
func prepare(ctx context.Context, dir, text string, onDemand ...role.Role) (release func() error,
	err error) {
	partition, err := parsePlacement(text)
	if err != nil {
		return nil, err
	}
	if os.Geteuid() != 0 {
		return nil, fmt.Errorf("the runtime folder is made by uid %d: run it as root, it gives each service its own identity",
			os.Geteuid())
	}
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return nil, fmt.Errorf("runtime folder: %w", err)
	}
	if err := closeFolder(dir); err != nil {
		return nil, fmt.Errorf("runtime folder: %w", err)
	}
	if !partition.Single {
		if err := checkReachable(dir); err != nil {
			return nil, err
		}
	}
	lock, err := lockFolder(ctx, filepath.Join(dir, "up.lock"))
	if err != nil {
		return nil, err
	}
	if err := fill(ctx, dir, partition, onDemand); err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	return lock.Close, nil
}

// fill makes the folders and the services' keys. The bus itself empties its store after a boot.
func fill(ctx context.Context, dir string, p placement.Partition, onDemand []role.Role) error {
	ctx, cancel := context.WithTimeout(ctx, removalTime)
	defer cancel()
	root, err := os.OpenRoot(dir)
	if err != nil {
		return fmt.Errorf("runtime folder: %w", err)
	}
	defer root.Close()
	if err := makeFolders(ctx, root, p); err != nil {
		return err
	}
	if err := writePlacement(dir, p); err != nil {
		return err
	}
	if err := removeDeadSockets(ctx, root, onDemand); err != nil {
		return err
	}
	empty(ctx, root, removed)
	var identities []role.Identity
	for _, r := range role.All() {
		id, err := p.Identity(r)
		if err != nil {
			return err
		}
		identities = append(identities, id)
	}
	if err := bus.GenerateNKeys(filepath.Join(dir, "nkeys"), identities); err != nil {
		return fmt.Errorf("keys for the bus: %w", err)
	}
	return nil
}

// closeFolder gives the runtime folder to root and the node's group, and closes it to others.
func closeFolder(dir string) error {
	info, err := os.Lstat(dir)
	if err != nil {
		return err
	}
	if !info.IsDir() {
		return fmt.Errorf("%s is no folder: move it", dir)
	}
	return errors.Join(os.Lchown(dir, 0, role.GroupNode), os.Chmod(dir, 0o750))
}

// checkReachable finds a folder on the way to dir that the services' users cannot enter: they would
// all fail, each with an error that says less.
func checkReachable(dir string) error {
	for parent := filepath.Dir(dir); ; parent = filepath.Dir(parent) {
		info, err := os.Stat(parent)
		if err != nil {
			return fmt.Errorf("runtime folder: %w", err)
		}
		if info.Mode().Perm()&0o001 == 0 {
			owner, ok := info.Sys().(*syscall.Stat_t)
			if !ok || owner.Gid != role.GroupNode || info.Mode().Perm()&0o010 == 0 {
				return fmt.Errorf("the services' users cannot enter %s (mode %04o) on the way to %s; chmod o+x it, choose "+
					"another folder, or use --placement=single", parent, info.Mode().Perm(), dir)
			}
		}
		if parent == filepath.Dir(parent) {
			return nil
		}
	}
}

// lockFolder takes the lock that says which process supervises the folder. It ends with the process.
func lockFolder(ctx context.Context, path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock of the runtime folder: %w", err)
	}
	deadline := time.Now().Add(lockWait)
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return f, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return nil, errors.Join(fmt.Errorf("lock %s: %w", path, err), f.Close())
		}
		if time.Now().After(deadline) || ctx.Err() != nil {
			return nil, errors.Join(fmt.Errorf("another microlet up supervises %s: stop it, or choose another --runtime-dir",
				filepath.Dir(path)), f.Close())
		}
		select {
		case <-ctx.Done():
		case <-time.After(lockRetry):
		}
	}
}

// writeFile replaces a file at once.
func writeFile(path string, data []byte, mode fs.FileMode, uid, gid int) error {
	if err := atomicfile.Write(path, data, atomicfile.Attributes{Mode: mode, UID: uid, GID: gid}); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}

// copyFile makes the file hold data, for its owner alone, and reports whether it did not before. Of another placement,
// it may hold the data for another user.
func copyFile(path string, data []byte, id role.Identity) (changed bool, err error) {
	same, err := holds(path, data)
	if err != nil {
		return false, err
	}
	if info, err := os.Lstat(path); same && err == nil && isOwner(info, id.UID) {
		return false, nil
	}
	return true, writeFile(path, data, 0o600, id.UID, id.GID)
}

// holds reports whether path is a regular file that holds data. It reads no more than it expects: the file is another
// user's.
func holds(path string, data []byte) (bool, error) {
	f, err := regularfile.Open(path)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, regularfile.ErrNotRegular), errors.Is(err, unix.EWOULDBLOCK):
		// Nothing, something else, or a file of which its owner holds a lease.
		return false, nil
	case err != nil:
		return false, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil || info.Size() != int64(len(data)) {
		return false, err
	}
	old, err := io.ReadAll(io.LimitReader(f, int64(len(data))+1))
	return err == nil && bytes.Equal(old, data), err
}
