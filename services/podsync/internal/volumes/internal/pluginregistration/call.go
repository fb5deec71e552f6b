package pluginregistration

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/microlet/microlet/services/internal/pluginsocket"
)

// The kubelet's deadlines.
const (
	connectTimeout = 10 * time.Second
	infoTimeout    = time.Second
	notifyTimeout  = 5 * time.Second
)

const (
	// maxAnswer bounds an answer: a plugin says a few words of itself.
	maxAnswer = 64 << 10
	// maxHeaders bounds what is beside it, an error's text among it.
	maxHeaders = 16 << 10
)

// errReplaced means that the socket is not the one any more that was found.
var errReplaced = errors.New("the socket was replaced")

// dialer connects to one socket and to no other: it checks the identity, and connects through the descriptor.
type dialer struct {
	folder   folder
	relative string
	id       identity
}

func (d dialer) dial(ctx context.Context, _ string) (net.Conn, error) {
	fd, id, err := d.folder.socket(d.relative)
	if err != nil {
		return nil, err
	}
	defer func() { _ = unix.Close(fd) }()
	if id != d.id {
		return nil, errReplaced
	}
	return pluginsocket.Connect(ctx, fd)
}

// client speaks the registration API to one plugin.
type client struct {
	api  registerapi.RegistrationClient
	conn *grpc.ClientConn
	// refused is why the last connection failed. grpc does not return it.
	refused *atomic.Pointer[error]
}

// connect does not wait for the plugin: the first call does.
func (d dialer) connect() (*client, error) {
	refused := new(atomic.Pointer[error])
	dial := func(ctx context.Context, target string) (net.Conn, error) {
		conn, err := d.dial(ctx, target)
		refused.Store(&err)
		return conn, err
	}
	conn, err := grpc.NewClient("passthrough:///plugin",
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(dial),
		grpc.WithMaxHeaderListSize(maxHeaders),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxAnswer)),
	)
	if err != nil {
		return nil, err
	}
	return &client{registerapi.NewRegistrationClient(conn), conn, refused}, nil
}

func (c *client) close() { _ = c.conn.Close() }

// info asks for the name, type and versions of the plugin. A plugin has 10 s to accept the connection and 1 s to
// answer.
func (c *client) info(ctx context.Context) (*registerapi.PluginInfo, error) {
	if err := c.ready(ctx); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, infoTimeout)
	defer cancel()
	info, err := c.api.GetInfo(ctx, &registerapi.InfoRequest{})
	if err != nil {
		return nil, fmt.Errorf("failed to get plugin info using RPC GetInfo: %w", err)
	}
	return info, nil
}

// ready waits for the connection. grpc connects again after a failure, so a plugin that binds its socket a moment
// before it listens is found in time.
func (c *client) ready(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	c.conn.Connect()
	for state := c.conn.GetState(); state != connectivity.Ready; state = c.conn.GetState() {
		if !c.conn.WaitForStateChange(ctx, state) {
			return c.unreachable(ctx.Err())
		}
		c.conn.Connect()
	}
	return nil
}

func (c *client) unreachable(err error) error {
	if refused := c.refused.Load(); refused != nil && *refused != nil {
		err = errors.Join(err, *refused)
	}
	return fmt.Errorf("dial failed: %w", err)
}

// notify sends the plugin the result. An empty problem means that it is registered.
func (c *client) notify(ctx context.Context, problem string) error {
	ctx, cancel := context.WithTimeout(ctx, notifyTimeout)
	defer cancel()
	_, err := c.api.NotifyRegistrationStatus(ctx,
		&registerapi.RegistrationStatus{PluginRegistered: problem == "", Error: problem})
	if err != nil {
		return fmt.Errorf("failed to send registration status: %w", err)
	}
	return nil
}
