package plugin

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/microlet/microlet/services/resources/internal/devices/internal/answer"
)

// server is a device plugin behind a socket.
type server struct {
	pluginapi.UnimplementedDevicePluginServer
	options  func(context.Context) (*pluginapi.DevicePluginOptions, error)
	lists    chan *pluginapi.ListAndWatchResponse
	allocate func(context.Context, *pluginapi.AllocateRequest) (*pluginapi.AllocateResponse, error)
	prefer   func(*pluginapi.PreferredAllocationRequest) *pluginapi.PreferredAllocationResponse

	mu       sync.Mutex
	prepared []string
}

func (s *server) GetDevicePluginOptions(ctx context.Context, _ *pluginapi.Empty) (
	*pluginapi.DevicePluginOptions, error) {
	if s.options == nil {
		return &pluginapi.DevicePluginOptions{GetPreferredAllocationAvailable: true, PreStartRequired: true}, nil
	}
	return s.options(ctx)
}

func (s *server) ListAndWatch(_ *pluginapi.Empty, to pluginapi.DevicePlugin_ListAndWatchServer) error {
	for {
		select {
		case <-to.Context().Done():
			return to.Context().Err()
		case list, ok := <-s.lists:
			if !ok {
				return status.Error(codes.Internal, "no more")
			}
			if err := to.Send(list); err != nil {
				return err
			}
		}
	}
}

func (s *server) Allocate(ctx context.Context, r *pluginapi.AllocateRequest) (*pluginapi.AllocateResponse, error) {
	return s.allocate(ctx, r)
}

func (s *server) GetPreferredAllocation(_ context.Context, r *pluginapi.PreferredAllocationRequest) (
	*pluginapi.PreferredAllocationResponse, error) {
	if s.prefer == nil {
		return nil, errors.New("broken")
	}
	return s.prefer(r), nil
}

func (s *server) PreStartContainer(_ context.Context, r *pluginapi.PreStartContainerRequest) (
	*pluginapi.PreStartContainerResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(r.DevicesIds) == 0 {
		return nil, errors.New("none")
	}
	s.prepared = append(s.prepared, r.DevicesIds...)
	return &pluginapi.PreStartContainerResponse{}, nil
}

// folder is one whose path leaves room for a socket's.
func folder(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "plugin")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

func serve(t *testing.T, path string, s *server) (stop func()) {
	t.Helper()
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	g := grpc.NewServer()
	pluginapi.RegisterDevicePluginServer(g, s)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = g.Serve(l)
	}()
	stop = sync.OnceFunc(func() {
		g.Stop()
		<-done
	})
	t.Cleanup(stop)
	return stop
}

func connect(t *testing.T, s *server) Plugin {
	t.Helper()
	dir := folder(t)
	serve(t, dir+"/p.sock", s)
	p, err := Dialer{Folders: []string{"/none", dir}}.Dial(t.Context(), dir+"/p.sock")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}

func TestCalls(t *testing.T) {
	s := &server{
		lists: make(chan *pluginapi.ListAndWatchResponse),
		allocate: func(_ context.Context, r *pluginapi.AllocateRequest) (*pluginapi.AllocateResponse, error) {
			if len(r.ContainerRequests) != 1 {
				return nil, fmt.Errorf("%d containers", len(r.ContainerRequests))
			}
			return &pluginapi.AllocateResponse{ContainerResponses: []*pluginapi.ContainerAllocateResponse{{
				Envs: map[string]string{"IDS": strings.Join(r.ContainerRequests[0].DevicesIds, ",")},
			}}}, nil
		},
		prefer: func(r *pluginapi.PreferredAllocationRequest) *pluginapi.PreferredAllocationResponse {
			c := r.ContainerRequests[0]
			return &pluginapi.PreferredAllocationResponse{
				ContainerResponses: []*pluginapi.ContainerPreferredAllocationResponse{{
					DeviceIDs: append(c.MustIncludeDeviceIDs, c.AvailableDeviceIDs[:c.AllocationSize]...),
				}},
			}
		},
	}
	p := connect(t, s)
	if !p.Prefers() || !p.Prepares() {
		t.Error("the options are lost")
	}
	lists, ended := make(chan answer.Devices), make(chan error)
	go func() { ended <- p.Watch(t.Context(), func(d answer.Devices) { lists <- d }) }()
	for _, health := range []string{"Healthy", "Unhealthy"} {
		s.lists <- &pluginapi.ListAndWatchResponse{Devices: []*pluginapi.Device{{ID: "a", Health: health}}}
		if d := <-lists; len(d) != 1 || d["a"].Healthy != (health == "Healthy") {
			t.Errorf("%s: %v", health, d)
		}
	}
	c, err := p.Allocate(t.Context(), []string{"a", "b"})
	if err != nil || c.Envs["IDS"] != "a,b" {
		t.Errorf("Allocate: %v, %v", c, err)
	}
	ids, err := p.Preferred(t.Context(), []string{"a", "b", "c"}, []string{"x"}, 2)
	if err != nil || !slices.Equal(ids, []string{"x", "a", "b"}) {
		t.Errorf("Preferred: %v, %v", ids, err)
	}
	if err := p.Prepare(t.Context(), []string{"a"}); err != nil || !slices.Equal(s.prepared, []string{"a"}) {
		t.Errorf("Prepare: %v, %v", s.prepared, err)
	}
	err = p.Prepare(t.Context(), nil)
	const failed = "device plugin PreStartContainer rpc failed with err: rpc error: code = Unknown desc = none"
	if err == nil || err.Error() != failed {
		t.Error(err)
	}
	close(s.lists)
	if err := <-ended; err.Error() != "ListAndWatch ended: rpc error: code = Internal desc = no more" || Away(err) {
		t.Error(err)
	}
	s.prefer = nil
	if _, err := p.Preferred(t.Context(), nil, nil, 1); err == nil || Away(err) ||
		!strings.HasPrefix(err.Error(), "device plugin GetPreferredAllocation rpc failed with err: ") {
		t.Error(err)
	}
}

func TestStrangeAnswers(t *testing.T) {
	long := strings.Repeat("é", 5000)
	var response *pluginapi.AllocateResponse
	var fails error
	s := &server{
		allocate: func(context.Context, *pluginapi.AllocateRequest) (*pluginapi.AllocateResponse, error) {
			return response, fails
		},
	}
	p := connect(t, s)
	response = &pluginapi.AllocateResponse{}
	_, err := p.Allocate(t.Context(), nil)
	if err == nil || err.Error() != "no containers return in allocation response" || Away(err) {
		t.Error(err)
	}
	fails = status.Error(codes.Internal, long)
	_, err = p.Allocate(t.Context(), nil)
	if err == nil || len(err.Error()) > 1100 || !strings.HasSuffix(err.Error(), "é…") {
		t.Errorf("%d bytes: %.60s", len(err.Error()), err)
	}
}

func TestStrangeLists(t *testing.T) {
	for id, want := range map[string]string{
		"":                         "its list of devices cannot be used: devices[0].ID: it is empty",
		strings.Repeat("x", 5<<20): "ListAndWatch ended: rpc error: code = ResourceExhausted",
	} {
		s := &server{lists: make(chan *pluginapi.ListAndWatchResponse, 1)}
		s.lists <- &pluginapi.ListAndWatchResponse{Devices: []*pluginapi.Device{{ID: id}}}
		err := connect(t, s).Watch(t.Context(), func(answer.Devices) { t.Error("it is handed on") })
		if !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

// TestHang: a plugin that does not answer is away when the caller's time is over, and when the connection ends.
func TestHang(t *testing.T) {
	s := &server{allocate: func(ctx context.Context, _ *pluginapi.AllocateRequest) (*pluginapi.AllocateResponse, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	}}
	p := connect(t, s)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := p.Allocate(ctx, nil); !Away(err) {
		t.Error(err)
	}
	time.AfterFunc(50*time.Millisecond, p.Close)
	if _, err := p.Allocate(t.Context(), nil); !Away(err) {
		t.Error(err)
	}
}

func TestTheEndOfAPlugin(t *testing.T) {
	dir := folder(t)
	stop := serve(t, dir+"/p.sock", &server{lists: make(chan *pluginapi.ListAndWatchResponse)})
	p, err := Dialer{Folders: []string{dir}}.Dial(t.Context(), dir+"/p.sock")
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	time.AfterFunc(50*time.Millisecond, stop)
	if err := p.Watch(t.Context(), func(answer.Devices) {}); !Away(err) {
		t.Error(err)
	}
}

func TestPluginsThatDoNotConnect(t *testing.T) {
	dir := folder(t)
	serve(t, dir+"/real.sock", &server{})
	serve(t, dir+"/options.sock", &server{options: func(context.Context) (*pluginapi.DevicePluginOptions, error) {
		return nil, errors.New("GetDevicePluginOptions failed")
	}})
	if err := errors.Join(os.Symlink("real.sock", dir+"/link.sock"), os.Symlink(".", dir+"/linked"),
		os.WriteFile(dir+"/file", nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	stale, err := net.ListenUnix("unix", &net.UnixAddr{Name: dir + "/stale.sock", Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	stale.SetUnlinkOnClose(false)
	if err := stale.Close(); err != nil {
		t.Fatal(err)
	}
	for endpoint, want := range map[string]string{
		"real.sock":        "",
		"options.sock":     "failed to get device plugin options: rpc error: code = Unknown desc = GetDevicePluginOptions",
		"link.sock":        "is a symbolic link: name the socket itself",
		"linked/real.sock": "is a symbolic link on the way to it",
		"file":             "is not a socket",
		"none.sock":        "no such file or directory",
		"stale.sock":       "connection refused",
		"../x.sock":        "is not a path below " + dir,
		"":                 "is not a path below " + dir,
	} {
		began := time.Now()
		p, err := Dialer{Folders: []string{dir}, Once: true}.Dial(t.Context(), filepath.Join(dir, endpoint))
		if err == nil {
			p.Close()
		}
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", endpoint, err, want)
		}
		if err != nil && !strings.HasPrefix(err.Error(), "failed to ") {
			t.Errorf("%s: %v is not in the kubelet's words", endpoint, err)
		}
		if after := time.Since(began); after > 5*time.Second {
			t.Errorf("%s: it took %s", endpoint, after)
		}
	}
}

// A plugin may bind its socket a moment before it listens.
func TestAPluginThatIsLate(t *testing.T) {
	dir := folder(t)
	late := make(chan struct{})
	time.AfterFunc(200*time.Millisecond, func() {
		defer close(late)
		serve(t, dir+"/p.sock", &server{})
	})
	p, err := Dialer{Folders: []string{dir}}.Dial(t.Context(), dir+"/p.sock")
	<-late
	if err != nil {
		t.Fatal(err)
	}
	p.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := (Dialer{Folders: []string{dir}}).Dial(ctx, dir+"/none.sock"); !errors.Is(err, context.DeadlineExceeded) ||
		!errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
}
