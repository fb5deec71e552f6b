package deviceplugin

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// EnvName is the variable in which a container finds the IDs of the devices of a resource that it was given, joined by
// commas.
func EnvName(resource string) string {
	return "DEVICES_" + strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z':
			return r - 'a' + 'A'
		case r >= 'A' && r <= 'Z', r >= '0' && r <= '9':
			return r
		}
		return '_'
	}, resource)
}

// NodePath is where a container finds the node of a device, which is that of /dev/null.
func NodePath(resource, id string) string { return "/dev/" + path.Base(resource) + "-" + id }

// FilePath is where a container finds the file of a device, which contains its ID.
func FilePath(resource, id string) string { return "/devices/" + path.Base(resource) + "/" + id }

// server is the plugin's service.
type server struct {
	pluginapi.UnimplementedDevicePluginServer
	*watcher

	resource string
	// files is the folder of the files that containers get with their devices.
	files string
}

func (s *server) GetDevicePluginOptions(ctx context.Context, _ *pluginapi.Empty) (
	answer *pluginapi.DevicePluginOptions, err error,
) {
	err = s.call(ctx, Line{Method: GetOptions}, func(*Rule) error {
		p, err := s.plan()
		if err == nil {
			answer = p.options()
		}
		return err
	})
	return answer, err
}

// ListAndWatch sends the devices, and again whenever the plan has others.
func (s *server) ListAndWatch(_ *pluginapi.Empty, stream grpc.ServerStreamingServer[pluginapi.ListAndWatchResponse],
) error {
	ctx := stream.Context()
	var sent *pluginapi.ListAndWatchResponse
	send := func() error {
		p, err := s.plan()
		if err != nil {
			return status.Error(codes.Internal, err.Error())
		}
		if now := p.list(); sent == nil || !proto.Equal(now, sent) {
			sent = now
			return stream.Send(now)
		}
		return nil
	}
	l := Line{Method: List}
	l.Number = s.begin(l)
	err := s.apply(ctx, l, false)
	for err == nil {
		if err = send(); err != nil {
			break
		}
		if err = s.apply(ctx, l, true); err != nil {
			break
		}
		select {
		case <-ctx.Done():
			err = status.FromContextError(ctx.Err()).Err()
		case <-time.After(look):
		}
	}
	l.Code, l.Message = status.Code(err).String(), status.Convert(err).Message()
	s.write(l)
	return err
}

// GetPreferredAllocation prefers the devices whose IDs come last. The agent prefers none by itself.
func (s *server) GetPreferredAllocation(ctx context.Context, request *pluginapi.PreferredAllocationRequest) (
	*pluginapi.PreferredAllocationResponse, error,
) {
	l, answer := Line{Method: Preferred}, &pluginapi.PreferredAllocationResponse{}
	for _, c := range request.GetContainerRequests() {
		l.Devices = append(l.Devices, c.GetAvailableDeviceIDs())
	}
	err := s.call(ctx, l, func(r *Rule) error {
		for _, c := range request.GetContainerRequests() {
			one := prefer(c)
			if r != nil && r.Choice != nil {
				one = r.Choice
			}
			answer.ContainerResponses = append(answer.ContainerResponses,
				&pluginapi.ContainerPreferredAllocationResponse{DeviceIDs: one})
		}
		return nil
	})
	return answer, err
}

func prefer(c *pluginapi.ContainerPreferredAllocationRequest) []string {
	ids := slices.Clone(c.GetMustIncludeDeviceIDs())
	all := slices.Sorted(slices.Values(c.GetAvailableDeviceIDs()))
	slices.Reverse(all)
	for _, id := range all {
		if len(ids) >= int(c.GetAllocationSize()) {
			break
		}
		if !slices.Contains(ids, id) {
			ids = append(ids, id)
		}
	}
	return ids
}

// Allocate gives each container its devices in a variable, as nodes, as files and in an annotation.
func (s *server) Allocate(
	ctx context.Context, request *pluginapi.AllocateRequest,
) (*pluginapi.AllocateResponse, error) {
	l, answer := Line{Method: Allocate}, &pluginapi.AllocateResponse{}
	for _, c := range request.GetContainerRequests() {
		l.Devices = append(l.Devices, slices.Sorted(slices.Values(c.GetDevicesIds())))
	}
	err := s.call(ctx, l, func(r *Rule) error {
		count := len(l.Devices)
		if r != nil && r.Containers != nil {
			count = *r.Containers
		}
		for i := range count {
			var ids []string
			if i < len(l.Devices) {
				ids = l.Devices[i]
			}
			a, err := s.answer(ids)
			if r != nil && r.Answer != nil {
				a, err = r.Answer, nil
			}
			if err != nil {
				return err
			}
			answer.ContainerResponses = append(answer.ContainerResponses, a.message())
		}
		return nil
	})
	return answer, err
}

// answer is the true answer for a container.
func (s *server) answer(ids []string) (*Answer, error) {
	joined := strings.Join(ids, ",")
	a := &Answer{
		Env:         map[string]string{EnvName(s.resource): joined},
		Annotations: map[string]string{s.resource: joined},
	}
	for _, id := range ids {
		a.Devices = append(a.Devices, &pluginapi.DeviceSpec{
			HostPath: "/dev/null", ContainerPath: NodePath(s.resource, id), Permissions: "rw",
		})
		if s.files == "" {
			continue
		}
		file := filepath.Join(s.files, id)
		if err := os.WriteFile(file, []byte(id+"\n"), 0o644); err != nil {
			return nil, fmt.Errorf("make the file of a device: %w", err)
		}
		a.Mounts = append(a.Mounts, &pluginapi.Mount{
			HostPath: file, ContainerPath: FilePath(s.resource, id), ReadOnly: true,
		})
	}
	return a, nil
}

func (a *Answer) message() *pluginapi.ContainerAllocateResponse {
	m := &pluginapi.ContainerAllocateResponse{
		Envs: a.Env, Mounts: a.Mounts, Devices: a.Devices, Annotations: a.Annotations,
	}
	for _, name := range a.CDI {
		m.CdiDevices = append(m.CdiDevices, &pluginapi.CDIDevice{Name: name})
	}
	return m
}

func (s *server) PreStartContainer(ctx context.Context, request *pluginapi.PreStartContainerRequest) (
	*pluginapi.PreStartContainerResponse, error,
) {
	l := Line{Method: PreStart, Devices: [][]string{slices.Sorted(slices.Values(request.GetDevicesIds()))}}
	err := s.call(ctx, l, func(*Rule) error { return nil })
	return &pluginapi.PreStartContainerResponse{}, err
}

// check returns what is wrong with the options.
func (o *Options) check() error {
	var problems []error
	if !strings.Contains(o.Resource, "/") {
		problems = append(problems, fmt.Errorf("the resource is %q: write a domain, a slash and a name", o.Resource))
	}
	if o.Socket == "" {
		problems = append(problems, errors.New("the socket is empty: write the path at which the plugin is to serve"))
	}
	if (o.Kubelet == "") == (o.Registry == "") {
		problems = append(problems, errors.New("write one of the agent's socket, at which the plugin registers, and the "+
			"path of a socket in the agent's folder plugins_registry"))
	}
	if o.Registry != "" && o.Registry != o.Socket && filepath.Dir(o.Registry) == filepath.Dir(o.Socket) {
		problems = append(problems, fmt.Errorf("the socket %s is in the folder of %s, whose sockets all are plugins of "+
			"their own: write the same path, or one in another folder", o.Socket, o.Registry))
	}
	return errors.Join(problems...)
}
