package openlog

import (
	"context"
	"os"

	"github.com/microlet/microlet/services/internal/passfile"
	"github.com/microlet/microlet/services/internal/unixgrpc"
)

// Client asks podsync. It is safe for concurrent use.
type Client struct{ files *passfile.Client }

// NewClient returns a client of the server on a socket.
func NewClient(socket string, peers unixgrpc.Rules) *Client {
	return &Client{passfile.NewClient(what, socket, peers)}
}

// Open returns the log that a container writes now. The error is a status: Unavailable if podsync is away, NotFound if
// there is no file at the log's path, or no such container.
func (c *Client) Open(ctx context.Context, id string) (*os.File, error) { return c.files.Open(ctx, id) }
