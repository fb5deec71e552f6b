package service

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/microlet/microlet/services/internal/unixgrpc"
)

const (
	// maxFolderEntries is more than there is in a folder of sockets.
	maxFolderEntries = 4096
	// answerTimeout is how long a server may take to accept before its socket counts as stale.
	answerTimeout = time.Second
)

// Socket is one that a service serves beside those below the runtime folder. Root alone may connect to it.
type Socket struct {
	// Path of the socket. Its folder is made if it is not there, and closed to others than its owner and group.
	Path string
	// Clear removes all other sockets of the folder first: those who serve them look for that, or for the socket itself,
	// to register again.
	Clear bool
}

// Listen opens the socket. One that a dead server left is replaced; if a server answers on it, the error wraps
// unixgrpc.ErrInUse, and no other socket was removed.
func (s Socket) Listen() (net.Listener, error) {
	if err := MakeFolder(filepath.Dir(s.Path)); err != nil {
		return nil, fmt.Errorf("folder of a socket: %w", err)
	}
	if s.Clear {
		// The socket comes last: who has waited for it makes a socket of its own then, which is to stay.
		if conn, err := net.DialTimeout("unix", s.Path, answerTimeout); err == nil {
			return nil, errors.Join(fmt.Errorf("listen on %s: %w", s.Path, unixgrpc.ErrInUse), conn.Close())
		}
		if err := s.clear(); err != nil {
			return nil, fmt.Errorf("remove the sockets beside %s: %w", s.Path, err)
		}
	}
	return unixgrpc.Listen(s.Path, 0o600, -1)
}

// clear removes the sockets beside this one. Nothing else is removed, and no link is followed.
func (s Socket) clear() error {
	root, err := os.OpenRoot(filepath.Dir(s.Path))
	if err != nil {
		return err
	}
	defer root.Close()
	dir, err := root.Open(".")
	if err != nil {
		return err
	}
	defer dir.Close()
	entries, err := dir.ReadDir(maxFolderEntries)
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	for _, e := range entries {
		if e.Type() != fs.ModeSocket || e.Name() == filepath.Base(s.Path) {
			continue
		}
		if err := root.Remove(e.Name()); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// MakeFolder makes a folder, those on the way to it, and closes it to others than its owner and group.
func MakeFolder(path string) error {
	if err := os.MkdirAll(path, 0o750); err != nil {
		return err
	}
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	if open := info.Mode().Perm() & 0o007; open != 0 {
		return os.Chmod(path, info.Mode().Perm()&^open)
	}
	return nil
}
