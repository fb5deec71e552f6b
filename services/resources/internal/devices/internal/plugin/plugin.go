// Package plugin speaks the device plugin API, v1beta1, to one plugin. Each call has a deadline.
package plugin

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/microlet/microlet/services/internal/pluginsocket"
	"github.com/microlet/microlet/services/resources/internal/devices/internal/answer"
)

const (
	// ConnectTimeout is how long a plugin may take to accept the connection, as with the kubelet.
	ConnectTimeout = 10 * time.Second
	// OptionsTimeout is how long it may take to say its options. The kubelet waits without end.
	OptionsTimeout = 10 * time.Second
	// CallTimeout is that of the other calls. The kubelet has it for PreStartContainer alone.
	CallTimeout = pluginapi.KubeletPreStartContainerRPCTimeoutInSecs * time.Second
	// reportPause is how long a plugin's list is followed by no other.
	reportPause = 100 * time.Millisecond
	// maxAnswer bounds one message of a plugin. It is gRPC's default, which the kubelet has.
	maxAnswer = 4 << 20
	// maxHeaders bounds the headers of an answer.
	maxHeaders = 64 << 10
	// maxText bounds what a plugin says of an error. It goes into the status of a pod.
	maxText = 1024
)

// Plugin is a connected plugin.
type Plugin interface {
	// Prefers reports whether the plugin has GetPreferredAllocation, and Prepares whether it wants PreStartContainer.
	Prefers() bool
	Prepares() bool
	// Watch hands on each list of devices until the plugin or the connection ends, which is the error.
	Watch(ctx context.Context, receive func(answer.Devices)) error
	// Allocate asks what a container needs for the devices.
	Allocate(ctx context.Context, devices []string) (*pluginapi.ContainerAllocateResponse, error)
	// Preferred asks for size of the available devices, those that it must include among them.
	Preferred(ctx context.Context, available, mustInclude []string, size int) ([]string, error)
	// Prepare calls PreStartContainer.
	Prepare(ctx context.Context, devices []string) error
	// Close ends the connection, and the calls that are under way.
	Close()
}

// Away reports whether an error says that a plugin is not there or does not answer, which may change. Others are the
// plugin's own.
func Away(err error) bool {
	switch status.Code(err) {
	case codes.Unavailable, codes.DeadlineExceeded, codes.Canceled:
		return true
	}
	return errors.Is(err, context.DeadlineExceeded)
}

// Dialer connects to plugins.
type Dialer struct {
	// Folders are those below which plugins may have their sockets.
	Folders []string
	// Once: a plugin that does not accept the connection at once is away. Otherwise it has ConnectTimeout.
	Once bool
}

// client is a Plugin behind a socket.
type client struct {
	conn    *grpc.ClientConn
	api     pluginapi.DevicePluginClient
	options *pluginapi.DevicePluginOptions
	// refused is why the last connection failed. grpc does not return it.
	refused atomic.Pointer[error]
}

// Dial connects to the plugin at the path of a socket, and asks for its options. Errors have the kubelet's words.
func (d Dialer) Dial(ctx context.Context, endpoint string) (Plugin, error) {
	folder, err := d.folder(endpoint)
	if err != nil {
		return nil, err
	}
	c := &client{}
	dial := func(ctx context.Context, _ string) (net.Conn, error) {
		conn, err := folder.DialForLong(ctx, endpoint)
		c.refused.Store(&err)
		return conn, err
	}
	// The plugin's server is in the same host: the authority is what the kubelet says.
	c.conn, err = grpc.NewClient("passthrough:///plugin", grpc.WithAuthority("localhost"),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(dial),
		grpc.WithMaxHeaderListSize(maxHeaders),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxAnswer)),
		// A connection that ends is not made again: what is at the path then registers itself.
		grpc.WithIdleTimeout(0), grpc.WithDisableServiceConfig(),
	)
	if err != nil {
		return nil, err
	}
	c.api = pluginapi.NewDevicePluginClient(c.conn)
	if err := c.begin(ctx, d.Once); err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

func (d Dialer) folder(endpoint string) (pluginsocket.Folder, error) {
	for _, folder := range d.Folders {
		if relative, err := filepath.Rel(folder, endpoint); err == nil && filepath.IsLocal(relative) && relative != "." {
			return pluginsocket.Folder{Path: folder}, nil
		}
	}
	return pluginsocket.Folder{}, fmt.Errorf("failed to dial device plugin: endpoint %s is not a path below %s",
		short(fmt.Sprintf("%q", endpoint)), strings.Join(d.Folders, " or "))
}

func (c *client) begin(ctx context.Context, once bool) error {
	if err := c.ready(ctx, once); err != nil {
		return fmt.Errorf("failed to dial device plugin: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, OptionsTimeout)
	defer cancel()
	options, err := c.api.GetDevicePluginOptions(ctx, &pluginapi.Empty{})
	if err != nil {
		return fmt.Errorf("failed to get device plugin options: %w", readable(err))
	}
	c.options = options
	return nil
}

// ready waits for the connection. grpc tries again after a failure, so that a plugin which binds its socket a moment
// before it listens is found.
func (c *client) ready(ctx context.Context, once bool) error {
	ctx, cancel := context.WithTimeout(ctx, ConnectTimeout)
	defer cancel()
	c.conn.Connect()
	for state := c.conn.GetState(); state != connectivity.Ready; state = c.conn.GetState() {
		if once && state == connectivity.TransientFailure {
			return c.unreachable(nil)
		}
		if !c.conn.WaitForStateChange(ctx, state) {
			return c.unreachable(ctx.Err())
		}
		c.conn.Connect()
	}
	return nil
}

func (c *client) unreachable(err error) error {
	if refused := c.refused.Load(); refused != nil && *refused != nil {
		return errors.Join(err, *refused)
	}
	if err == nil {
		return errors.New("the connection ended at once")
	}
	return err
}

func (c *client) Prefers() bool { return c.options.GetGetPreferredAllocationAvailable() }

func (c *client) Prepares() bool { return c.options.GetPreStartRequired() }

func (c *client) Close() { _ = c.conn.Close() }

func (c *client) Watch(ctx context.Context, receive func(answer.Devices)) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := c.api.ListAndWatch(ctx, &pluginapi.Empty{})
	for err == nil {
		var list *pluginapi.ListAndWatchResponse
		if list, err = stream.Recv(); err != nil {
			break
		}
		devices, invalid := answer.List(list)
		if invalid != nil {
			return fmt.Errorf("its list of devices cannot be used: %w", invalid)
		}
		receive(devices)
		// A plugin that reports without end waits for its reader.
		select {
		case <-ctx.Done():
		case <-time.After(reportPause):
		}
	}
	return fmt.Errorf("ListAndWatch ended: %w", readable(err))
}

func (c *client) Allocate(ctx context.Context, devices []string) (*pluginapi.ContainerAllocateResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, CallTimeout)
	defer cancel()
	response, err := c.api.Allocate(ctx, &pluginapi.AllocateRequest{
		ContainerRequests: []*pluginapi.ContainerAllocateRequest{{DevicesIds: devices}},
	})
	if err != nil {
		return nil, readable(err)
	}
	return answer.Allocated(response)
}

func (c *client) Preferred(ctx context.Context, available, mustInclude []string, size int) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, CallTimeout)
	defer cancel()
	response, err := c.api.GetPreferredAllocation(ctx, &pluginapi.PreferredAllocationRequest{
		ContainerRequests: []*pluginapi.ContainerPreferredAllocationRequest{{
			AvailableDeviceIDs: available, MustIncludeDeviceIDs: mustInclude, AllocationSize: int32(size),
		}},
	})
	if err != nil {
		return nil, fmt.Errorf("device plugin GetPreferredAllocation rpc failed with err: %w", readable(err))
	}
	return answer.Preferred(response), nil
}

func (c *client) Prepare(ctx context.Context, devices []string) error {
	ctx, cancel := context.WithTimeout(ctx, CallTimeout)
	defer cancel()
	if _, err := c.api.PreStartContainer(ctx, &pluginapi.PreStartContainerRequest{DevicesIds: devices}); err != nil {
		return fmt.Errorf("device plugin PreStartContainer rpc failed with err: %w", readable(err))
	}
	return nil
}

// readable makes of what a plugin says text that fits into the status of a pod.
func readable(err error) error {
	s, ok := status.FromError(err)
	if err == nil || !ok {
		return err
	}
	text := short(strings.ToValidUTF8(s.Message(), "\uFFFD"))
	if text == s.Message() {
		return err
	}
	return status.Error(s.Code(), text)
}

func short(text string) string {
	if len(text) <= maxText {
		return text
	}
	text = text[:maxText]
	for !utf8.ValidString(text) {
		text = text[:len(text)-1]
	}
	return text + "…"
}
