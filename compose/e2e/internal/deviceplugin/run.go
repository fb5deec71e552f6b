package deviceplugin

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

// Options are of a plugin.
type Options struct {
	// Resource is the extended resource of its devices.
	Resource string
	// Socket is the path at which it serves. Of an agent's socket at Kubelet it is in the same folder.
	Socket string
	// Kubelet is the path of the agent's socket, at which the plugin registers.
	Kubelet string
	// Registry is, in place of Kubelet, the path of a socket in the agent's folder plugins_registry, at which the agent
	// finds the plugin. It may be Socket.
	Registry string
	// Plan and Calls are the paths of the plan and of the file to which calls are written; "" is none.
	Plan, Calls string
	// Files is an existing folder for the files that containers get with their devices; "": they get none.
	Files string
	// Once: the plugin does not serve and register again when the agent's socket is another, or its own is gone.
	Once bool
}

// timeout is for one try to register.
const timeout = 5 * time.Second

// Run serves a plugin until ctx ends. It registers as soon as there is an agent. Calls under way end with ctx.
func Run(ctx context.Context, o Options) error {
	if err := o.check(); err != nil {
		return fmt.Errorf("run a device plugin: %w", err)
	}
	w, err := newWatcher(o.Calls, filepath.Base(o.Socket), func() (*Plan, error) { return readPlan(o.Plan) })
	if err != nil {
		return fmt.Errorf("run a device plugin: %w", err)
	}
	for err == nil && ctx.Err() == nil {
		err = o.serve(ctx, w)
	}
	return errors.Join(err, w.close())
}

// serve serves until ctx ends, the agent's socket is another, or the plugin's is gone: an agent that starts removes the
// sockets of all plugins.
func (o *Options) serve(ctx context.Context, w *watcher) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s := grpc.NewServer(grpc.WaitForHandlers(true))
	pluginapi.RegisterDevicePluginServer(s, &server{watcher: w, resource: o.Resource, files: o.Files})
	sockets := []string{o.Socket}
	if o.Registry != "" {
		registerapi.RegisterRegistrationServer(s, &registration{watcher: w, options: o})
		if o.Registry != o.Socket {
			sockets = append(sockets, o.Registry)
		}
	}
	ended := make(chan error, len(sockets))
	for _, path := range sockets {
		l, err := listen(ctx, path)
		if err != nil {
			s.Stop()
			return err
		}
		go func() { ended <- s.Serve(l) }()
	}
	err := o.stay(ctx, w)
	s.Stop()
	for range sockets {
		if e := <-ended; !errors.Is(e, grpc.ErrServerStopped) {
			err = errors.Join(err, e)
		}
	}
	return err
}

// stay registers the plugin, and returns when it is to be registered again, or when ctx ends.
func (o *Options) stay(ctx context.Context, w *watcher) error {
	if o.Registry != "" {
		<-ctx.Done()
		return nil
	}
	var at os.FileInfo
	for ctx.Err() == nil {
		now, err := os.Stat(o.Kubelet)
		_, gone := os.Stat(o.Socket)
		switch {
		case errors.Is(gone, os.ErrNotExist) && !o.Once:
			return nil
		case err != nil && !errors.Is(err, os.ErrNotExist):
			return fmt.Errorf("look for the agent: %w", err)
		case err == nil && at == nil:
			if o.register(ctx, w) == nil {
				at = now
			}
		case err == nil && !os.SameFile(now, at) && !o.Once:
			return nil
		}
		select {
		case <-ctx.Done():
		case <-time.After(look):
		}
	}
	return nil
}

// register registers the plugin at the agent's socket.
func (o *Options) register(ctx context.Context, w *watcher) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	conn, err := grpc.NewClient("unix://"+o.Kubelet, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	return w.call(ctx, Line{Method: Register}, func(*Rule) error {
		p, err := w.plan()
		if err != nil {
			return err
		}
		_, err = pluginapi.NewRegistrationClient(conn).Register(ctx, &pluginapi.RegisterRequest{
			Version: p.version(), Endpoint: filepath.Base(o.Socket), ResourceName: o.Resource, Options: p.options(),
		})
		return err
	})
}

func (p *Plan) version() string {
	if p.Version != "" {
		return p.Version
	}
	return pluginapi.Version
}

// registration is the service by which an agent asks a plugin whose socket it has found.
type registration struct {
	registerapi.UnimplementedRegistrationServer
	*watcher

	options *Options
}

func (r *registration) GetInfo(context.Context, *registerapi.InfoRequest) (*registerapi.PluginInfo, error) {
	p, err := r.plan()
	if err != nil {
		return nil, err
	}
	return &registerapi.PluginInfo{
		Type: registerapi.DevicePlugin, Name: r.options.Resource, Endpoint: r.options.Socket,
		SupportedVersions: []string{p.version()},
	}, nil
}

func (r *registration) NotifyRegistrationStatus(ctx context.Context, s *registerapi.RegistrationStatus) (
	*registerapi.RegistrationStatusResponse, error,
) {
	err := r.call(ctx, Line{Method: Register}, func(*Rule) error {
		if !s.GetPluginRegistered() {
			return errors.New(s.GetError())
		}
		return nil
	})
	return &registerapi.RegistrationStatusResponse{}, err
}

// listen takes the place of what an earlier process has left.
func listen(ctx context.Context, path string) (net.Listener, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
		return nil, fmt.Errorf("serve a device plugin: %w", err)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("serve a device plugin: %w", err)
	}
	var config net.ListenConfig
	l, err := config.Listen(ctx, "unix", path)
	if err != nil {
		return nil, fmt.Errorf("serve a device plugin: %w", err)
	}
	return l, nil
}
