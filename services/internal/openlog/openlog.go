// Package openlog passes the open log of a container from podsync to nodeapi.
//
// A runtime may give a log to root alone, as CRI-O does, also each file that follows a rotation. podsync, which is
// root, opens such a file, and the descriptor goes over a unix socket (SCM_RIGHTS). So there is no moment between the
// making of a file and a change of its mode in which it cannot be read.
//
//   - A request is the ID of a container. The runtime says where its log is, so no caller chooses a path.
//   - The log is a regular file below the folder of all pods' logs. No link is followed and no mount is entered.
//   - The descriptor can only read. Errors are gRPC statuses; NotFound says that there is no file at the log's path.
package openlog

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"golang.org/x/time/rate"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/services/internal/logkey"
	"github.com/microlet/microlet/services/internal/samemount"
	"github.com/microlet/microlet/services/internal/unixgrpc"
)

const (
	// timeout bounds one request, with the runtime's answer to where the log is.
	timeout = 10 * time.Second
	// maxID and maxText bound what each side reads.
	maxID, maxText = 256, 4 << 10
	// acceptPause is the time until the next try to accept a connection.
	acceptPause = time.Second
	// refusalLogPeriod is how often refusals are logged. All are counted.
	refusalLogPeriod = 10 * time.Second
)

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

// Results of requests.
const (
	ok     = "ok"
	denied = "denied" // to another role than nodeapi
	failed = "failed"
)

// Run serves the listener, which it closes, until ctx ends.
func (s *Server) Run(ctx context.Context, l net.Listener) error {
	refused := rate.Sometimes{First: 1, Interval: refusalLogPeriod}
	var answers sync.WaitGroup
	defer answers.Wait()
	defer context.AfterFunc(ctx, func() { _ = l.Close() })()
	for {
		c, err := l.Accept()
		switch {
		case err == nil:
			answers.Go(func() {
				defer c.Close() // the other side has its own copy
				result, err := s.answer(ctx, c)
				s.Count(result)
				if err != nil {
					refused.Do(func() { s.Log.Warn("log not opened for nodeapi", logkey.Reason, result, logkey.Err, err) })
				}
			})
		case ctx.Err() != nil:
			return nil
		default: // such as of too many open files: nothing but kubectl logs ends with this socket
			refused.Do(func() { s.Log.Warn("socket of logs does not accept", logkey.Err, err) })
			select {
			case <-ctx.Done():
			case <-time.After(acceptPause):
			}
		}
	}
}

// conn can pass descriptors on: a *net.UnixConn, also within another connection.
type conn interface {
	net.Conn
	WriteMsgUnix(b, oob []byte, to *net.UnixAddr) (n, oobn int, err error)
}

// answer serves one connection, which has one request.
func (s *Server) answer(ctx context.Context, c net.Conn) (result string, err error) {
	to, passes := c.(conn)
	if !passes {
		return failed, fmt.Errorf("a %T passes no descriptors on", c)
	}
	if err := c.SetDeadline(time.Now().Add(timeout)); err != nil {
		return failed, err
	}
	id, err := bufio.NewReader(io.LimitReader(c, maxID)).ReadString('\n')
	if err != nil {
		return failed, fmt.Errorf("request of at most %d bytes: %w", maxID, err)
	}
	if err := s.allow(c); err != nil {
		return denied, errors.Join(err, say(to, err))
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	f, err := s.open(ctx, strings.TrimSuffix(id, "\n"))
	if err != nil {
		return failed, errors.Join(err, say(to, err))
	}
	defer f.Close() // only read
	if _, _, err := to.WriteMsgUnix([]byte{byte(codes.OK)}, unix.UnixRights(int(f.Fd())), nil); err != nil {
		return failed, err
	}
	return ok, nil
}

// allow refuses a peer that is neither nodeapi nor root, which is all services where one process is.
func (s *Server) allow(c net.Conn) error {
	p, err := unixgrpc.Identify(c, s.Peers)
	if err == nil && !p.Is(role.NodeAPI) && !p.Is(role.Podsync) {
		err = status.Errorf(codes.PermissionDenied, "%s may not open logs", p)
	}
	return err
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

// say answers with an error: its code in one byte, then its text.
func say(c net.Conn, err error) error {
	what := status.Convert(err)
	text := what.Message()
	_, err = c.Write(append([]byte{byte(what.Code())}, text[:min(len(text), maxText)]...))
	return err
}
