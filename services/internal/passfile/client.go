package passfile

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/services/internal/unixgrpc"
)

// together is how many requests of a Client are under way at one time; the socket takes 32 connections of a user.
const together = 16

// Client asks podsync. It is safe for concurrent use.
type Client struct {
	what, socket string
	peers        unixgrpc.Rules
	places       chan struct{}
}

// NewClient returns a client of the server on a socket, which passes what.
func NewClient(what, socket string, peers unixgrpc.Rules) *Client {
	return &Client{what: what, socket: socket, peers: peers, places: make(chan struct{}, together)}
}

// Open returns the file that a request names. The error is a status: Unavailable if podsync is away, or the server's.
func (c *Client) Open(ctx context.Context, request string) (*os.File, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*timeout)
	defer cancel()
	select {
	case c.places <- struct{}{}:
		defer func() { <-c.places }()
	case <-ctx.Done():
		return nil, status.FromContextError(ctx.Err()).Err()
	}
	connected, err := unixgrpc.Connect(ctx, c.socket, role.Podsync, c.peers)
	if err != nil {
		return nil, status.Errorf(codes.Unavailable, "ask podsync for the %s: %v", c.what, err)
	}
	defer connected.Close()
	defer context.AfterFunc(ctx, func() { _ = connected.SetDeadline(time.Now()) })()
	if _, err := io.WriteString(connected, request+"\n"); err != nil {
		return nil, status.Errorf(codes.Unavailable, "ask podsync for the %s: %v", c.what, err)
	}
	f, err := c.receive(connected.(*net.UnixConn)) // as Connect dials it
	if err != nil && ctx.Err() != nil {
		err = status.FromContextError(ctx.Err()).Err()
	}
	return f, err
}

// receive reads an answer.
func (c *Client) receive(from *net.UnixConn) (*os.File, error) {
	answer, rights := make([]byte, 1+maxText), make([]byte, unix.CmsgSpace(4))
	n, oobn, _, _, err := from.ReadMsgUnix(answer, rights)
	switch {
	case err != nil || n == 0:
		return nil, status.Errorf(codes.Unavailable, "podsync has not answered: %v", errors.Join(io.ErrUnexpectedEOF, err))
	case codes.Code(answer[0]) != codes.OK:
		return nil, status.Error(codes.Code(answer[0]), string(answer[1:n]))
	}
	fd, err := descriptor(rights[:oobn])
	if err != nil {
		return nil, status.Errorf(codes.Internal, "podsync's answer: %v", err)
	}
	return os.NewFile(uintptr(fd), c.what), nil
}

// descriptor is the one that came with a message.
func descriptor(rights []byte) (int, error) {
	messages, err := unix.ParseSocketControlMessage(rights)
	if err != nil || len(messages) != 1 {
		return -1, fmt.Errorf("%d messages instead of one with a descriptor: %w", len(messages), err)
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil || len(fds) != 1 {
		return -1, fmt.Errorf("%d descriptors instead of one: %w", len(fds), err)
	}
	return fds[0], nil
}
