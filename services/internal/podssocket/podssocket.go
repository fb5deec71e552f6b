// Package podssocket passes the listening socket of the Pods API from podsync to nodeapi.
//
// The socket is where the kubelet has it, <root-dir>/pods-api/pods-api.sock, in a folder of root. podsync, which is
// root, makes both and passes the descriptor (see package passfile). So nodeapi has no right in any folder of root, and
// the modes say who may connect, which is root alone as with the kubelet.
//
//   - Each request makes a new socket in the place of what was there: one of a kubelet or of an earlier nodeapi, or
//     any file. A folder in its place is an error unless it is empty.
//   - podsync keeps no copy. While nodeapi is away, a client that connects is refused.
//
// See KEP-4188.
package podssocket

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/microlet/microlet/services/internal/passfile"
	"github.com/microlet/microlet/services/internal/unixgrpc"
)

const (
	// what is passed.
	what = "socket of the Pods API"
	// folder and name are the kubelet's, below the root folder.
	folder, name = "pods-api", "pods-api.sock"
	// maxPath is the room of sockaddr_un.sun_path, less its closing zero.
	maxPath = 107
	// folderMode and socketMode are those that the kubelet's have with the usual umask. Only who may write a socket may
	// connect to it.
	folderMode, socketMode = 0o750, 0o755
	// unplaced is the name of a socket that is not in its place yet.
	unplaced = ".new"
	// request is the only one.
	request = "listen"
)

// Path is where the socket is.
func Path(rootDir string) string { return filepath.Join(rootDir, folder, name) }

// Server makes the socket for nodeapi.
type Server struct {
	RootDir string
	// Peers say which processes have the roles of their user.
	Peers unixgrpc.Rules
	Log   *slog.Logger
	// Count counts requests by their result.
	Count func(result string)

	mu sync.Mutex // one at a time makes the socket
}

// Run serves the listener, which it closes, until ctx ends.
func (s *Server) Run(ctx context.Context, l net.Listener) error {
	files := &passfile.Server{What: what, Open: s.open, Peers: s.Peers, Log: s.Log, Count: s.Count}
	return files.Run(ctx, l)
}

func (s *Server) open(_ context.Context, asked string) (*os.File, error) {
	if asked != request {
		return nil, status.Errorf(codes.InvalidArgument, "request %q: there is only %q", asked, request)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	f, err := listen(Path(s.RootDir))
	if err != nil {
		return nil, status.Error(codes.FailedPrecondition, err.Error())
	}
	return f, nil
}

// listen makes the socket beside its place and moves it there, so that a client never finds one that does not listen.
func listen(path string) (*os.File, error) {
	if err := os.MkdirAll(filepath.Dir(path), folderMode); err != nil {
		return nil, fmt.Errorf("folder of the %s: %w", what, err)
	}
	if len(path) > maxPath {
		return nil, fmt.Errorf("%s: %s has %d bytes and a socket's path may have %d; choose a shorter --root-dir", what, path,
			len(path), maxPath)
	}
	made := filepath.Join(filepath.Dir(path), unplaced) // it is shorter
	if err := remove(made); err != nil {                // that of a podsync that was killed
		return nil, err
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: made, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	l.SetUnlinkOnClose(false)
	defer l.Close()
	if err := place(made, path); err != nil {
		return nil, errors.Join(err, remove(made))
	}
	return l.File()
}

func place(made, path string) error {
	if err := os.Chmod(made, socketMode); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	if info, err := os.Lstat(path); err == nil && info.IsDir() { // a hostPath of the type DirectoryOrCreate
		if err := remove(path); err != nil {
			return err
		}
	}
	if err := os.Rename(made, path); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}

func remove(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%s: remove what is in its place: %w", what, err)
	}
	return nil
}

// Client asks podsync. It is safe for concurrent use.
type Client struct{ files *passfile.Client }

// NewClient returns a client of the server on a socket.
func NewClient(socket string, peers unixgrpc.Rules) *Client {
	return &Client{passfile.NewClient(what, socket, peers)}
}

// Listen returns a new socket. Closing it leaves its file. The error is a status: Unavailable if podsync is away.
func (c *Client) Listen(ctx context.Context) (net.Listener, error) {
	f, err := c.files.Open(ctx, request)
	if err != nil {
		return nil, err
	}
	defer f.Close() // the listener has its own copy
	l, err := net.FileListener(f)
	if err != nil {
		return nil, status.Errorf(codes.Internal, "podsync's answer: %v", err)
	}
	return l, nil
}
