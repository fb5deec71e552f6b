package passfile

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"golang.org/x/time/rate"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/services/internal/logkey"
	"github.com/microlet/microlet/services/internal/unixgrpc"
)

const (
	// timeout bounds one request, with the opening of the file.
	timeout = 10 * time.Second
	// maxRequest and maxText bound what each side reads.
	maxRequest, maxText = 256, 4 << 10
	// acceptPause is the time until the next try to accept a connection.
	acceptPause = time.Second
	// refusalLogPeriod is how often refusals are logged. All are counted.
	refusalLogPeriod = 10 * time.Second
)

// Server opens files for nodeapi, and for root.
type Server struct {
	// What is passed, in the words of the log: "log".
	What string
	// Open opens what a request names. Its errors are gRPC statuses. The server closes the file.
	Open func(ctx context.Context, request string) (*os.File, error)
	// Peers say which processes have the roles of their user.
	Peers unixgrpc.Rules
	Log   *slog.Logger
	// Count counts requests by their result.
	Count func(result string)
}

// Results of requests.
const (
	OK     = "ok"
	Denied = "denied" // to another role than nodeapi
	Failed = "failed"
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
					refused.Do(func() {
						s.Log.Warn(s.What+" not opened for nodeapi", logkey.Reason, result, logkey.Err, err)
					})
				}
			})
		case ctx.Err() != nil:
			return nil
		default: // such as of too many open files
			refused.Do(func() { s.Log.Warn("socket for nodeapi does not accept", "what", s.What, logkey.Err, err) })
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
		return Failed, fmt.Errorf("a %T passes no descriptors on", c)
	}
	if err := c.SetDeadline(time.Now().Add(timeout)); err != nil {
		return Failed, err
	}
	request, err := bufio.NewReader(io.LimitReader(c, maxRequest)).ReadString('\n')
	if err != nil {
		return Failed, fmt.Errorf("request of at most %d bytes: %w", maxRequest, err)
	}
	if err := s.allow(c); err != nil {
		return Denied, errors.Join(err, say(to, err))
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	f, err := s.Open(ctx, strings.TrimSuffix(request, "\n"))
	if err != nil {
		return Failed, errors.Join(err, say(to, err))
	}
	defer f.Close() // the other side has its own copy
	if _, _, err := to.WriteMsgUnix([]byte{byte(codes.OK)}, unix.UnixRights(int(f.Fd())), nil); err != nil {
		return Failed, err
	}
	return OK, nil
}

// allow refuses a peer that is neither nodeapi nor root, which is all services where one process is.
func (s *Server) allow(c net.Conn) error {
	p, err := unixgrpc.Identify(c, s.Peers)
	if err == nil && !p.Is(role.NodeAPI) && !p.Is(role.Podsync) {
		err = status.Errorf(codes.PermissionDenied, "%s may not open a %s", p, s.What)
	}
	return err
}

// say answers with an error: its code in one byte, then its text.
func say(c net.Conn, err error) error {
	what := status.Convert(err)
	text := what.Message()
	_, err = c.Write(append([]byte{byte(what.Code())}, text[:min(len(text), maxText)]...))
	return err
}
