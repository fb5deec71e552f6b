package unixgrpc

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// maxPath is the room of sockaddr_un.sun_path, less its closing zero.
	maxPath = 107

	// probeTimeout is how long a server may take to accept before its socket counts as stale. The
	// kernel accepts for a process that is stopped, so only a dead one fails to.
	probeTimeout = time.Second

	// lockName is the file that a process locks to open a socket in its folder.
	lockName = ".lock"

	// lockTimeout bounds the wait for others who open a socket in the same folder just now.
	lockTimeout = 2 * time.Second
)

// ErrInUse says that another server answers on the socket.
var ErrInUse = errors.New("another server answers on the socket")

// Listen opens the unix socket at path with the given mode and group; a gid of -1 leaves the group.
//
// Its folder must be closed to others (mode x-x-0), because the socket exists for a moment before its
// own mode is set. A socket that a dead server left is replaced; if a server answers on it, the
// error is ErrInUse. Anything at path that is no socket is an error and stays.
func Listen(path string, mode os.FileMode, gid int) (net.Listener, error) {
	return ListenAs(path, mode, -1, gid)
}

// ListenAs is Listen for a socket that shall be another user's; a uid of -1 leaves it this one's.
func ListenAs(path string, mode os.FileMode, uid, gid int) (net.Listener, error) {
	if len(path) > maxPath {
		return nil,
			fmt.Errorf("listen on %s: the path has %d bytes and a unix socket's may have %d; choose a shorter --runtime-dir",
				path, len(path), maxPath)
	}
	dir := filepath.Dir(path)
	if err := checkClosed(dir); err != nil {
		return nil, fmt.Errorf("listen on %s: %w", path, err)
	}
	unlock, err := lockDir(dir)
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", path, err)
	}
	defer unlock()

	if err := removeStale(path); err != nil {
		return nil, fmt.Errorf("listen on %s: %w", path, err)
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	if err := own(path, mode, uid, gid); err != nil {
		return nil, errors.Join(fmt.Errorf("listen on %s: %w", path, err), l.Close())
	}
	return l, nil
}

// own gives a socket to its owner and to those who may connect. It follows no link: the folder may be another user's.
func own(path string, mode os.FileMode, uid, gid int) error {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return &fs.PathError{Op: "open", Path: path, Err: err}
	}
	defer func() { _ = unix.Close(fd) }()
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return &fs.PathError{Op: "stat", Path: path, Err: err}
	}
	if st.Mode&unix.S_IFMT != unix.S_IFSOCK {
		return errors.New("something else has taken the place of the socket")
	}
	if uid >= 0 || gid >= 0 {
		if err := unix.Fchownat(fd, "", uid, gid, unix.AT_EMPTY_PATH); err != nil {
			return &fs.PathError{Op: "chown", Path: path, Err: err}
		}
	}
	return os.Chmod(fmt.Sprintf("/proc/self/fd/%d", fd), mode)
}

// checkClosed refuses a folder that others than its owner and group may enter.
func checkClosed(dir string) error {
	info, err := os.Stat(dir)
	if err != nil {
		return err
	}
	if !info.IsDir() {
		return fmt.Errorf("%s is no folder", dir)
	}
	if info.Mode().Perm()&0o007 != 0 {
		return fmt.Errorf("folder %s has mode %04o and is open to others: chmod o-rwx it", dir, info.Mode().Perm())
	}
	return nil
}

// lockDir makes those who look for a stale socket and replace it take turns. The lock is of a file that only its owner
// may open: any user that may list a folder can lock the folder itself, and keep its owner from listening for ever. The
// file goes with the lock, since the next one who listens there may be another user. The lock ends with the process.
func lockDir(dir string) (unlock func(), err error) {
	path := filepath.Join(dir, lockName)
	deadline := time.Now().Add(lockTimeout)
	for {
		f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0o600)
		if err != nil {
			return nil, err
		}
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil && isAt(f, path) {
			return func() {
				_ = os.Remove(path) // who waits for it sees that it is another file; see isAt
				_ = f.Close()       // releases the lock
			}, nil
		}
		closed := f.Close()
		retry := err == nil || errors.Is(err, unix.EWOULDBLOCK) || errors.Is(err, unix.EINTR)
		if !retry || time.Now().After(deadline) {
			return nil, errors.Join(fmt.Errorf("lock folder %s: %w", dir, err), closed)
		}
		time.Sleep(5 * time.Millisecond) // flock has no deadline of its own
	}
}

// isAt reports whether the open file is the one of this name: the one who had the lock before has removed its own.
func isAt(f *os.File, path string) bool {
	open, err := f.Stat()
	if err != nil {
		return false
	}
	named, err := os.Lstat(path)
	return err == nil && os.SameFile(open, named)
}

// removeStale removes the socket at path if no server answers there. The caller holds the folder's lock. If a server
// does, the error is ErrInUse.
func removeStale(path string) error {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if info.Mode().Type() != fs.ModeSocket {
		return errors.New("something that is no socket is in the way; move it")
	}
	ctx, cancel := context.WithTimeout(context.Background(), probeTimeout)
	defer cancel()
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", path)
	if err == nil {
		return errors.Join(ErrInUse, conn.Close())
	}
	if errors.Is(err, syscall.ENOENT) {
		return nil
	}
	if !errors.Is(err, syscall.ECONNREFUSED) {
		// A full backlog (EAGAIN) or a refusal of access (EACCES) is a server that lives.
		return fmt.Errorf("%w: %w", ErrInUse, err)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove stale socket: %w", err)
	}
	return nil
}
