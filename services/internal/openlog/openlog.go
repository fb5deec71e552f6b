// Package openlog passes the open log of a container from podsync to nodeapi.
//
// A runtime may give a log to root alone, as CRI-O does, also each file that follows a rotation. podsync, which is
// root, opens such a file, and passes the descriptor (see package passfile). So there is no moment between the making
// of a file and a change of its mode in which it cannot be read.
//
//   - A request is the ID of a container. The runtime says where its log is, so no caller chooses a path.
//   - The log is a regular file below the folder of all pods' logs. No link is followed and no mount is entered.
//   - The descriptor can only read. Errors are gRPC statuses; NotFound says that there is no file at the log's path.
package openlog

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/microlet/microlet/services/internal/passfile"
	"github.com/microlet/microlet/services/internal/samemount"
	"github.com/microlet/microlet/services/internal/unixgrpc"
)

// what is passed.
const what = "log"

// Server opens logs for nodeapi, and for root.
type Server struct {
	// Folder is where all container logs are: podLogsDir.
	Folder string
	// Path returns where the runtime writes a container's log; empty if it writes none.
	Path func(ctx context.Context, id string) (string, error)
	// Peers say which processes have the roles of their user.
	Peers unixgrpc.Rules
	Log   *slog.Logger
	// Count counts requests by their result.
	Count func(result string)
}

// Run serves the listener, which it closes, until ctx ends.
func (s *Server) Run(ctx context.Context, l net.Listener) error {
	files := &passfile.Server{What: what, Open: s.open, Peers: s.Peers, Log: s.Log, Count: s.Count}
	return files.Run(ctx, l)
}

func (s *Server) open(ctx context.Context, id string) (*os.File, error) {
	path, err := s.Path(ctx, id)
	if err != nil {
		return nil, err
	}
	below, err := filepath.Rel(s.Folder, path)
	if err != nil || path == "" {
		return nil, status.Errorf(codes.FailedPrecondition, "the log of container %s, %q, is not below %s", id, path,
			s.Folder)
	}
	f, err := samemount.RegularFile(s.Folder, below)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, status.Error(codes.NotFound, err.Error())
	case err != nil:
		return nil, status.Error(codes.FailedPrecondition, err.Error())
	}
	return f, nil
}
