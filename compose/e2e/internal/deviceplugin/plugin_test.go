package deviceplugin

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

// agent is the agent's side of a registration.
type agent struct {
	pluginapi.UnimplementedRegistrationServer
	got chan *pluginapi.RegisterRequest
}

func (a *agent) Register(_ context.Context, r *pluginapi.RegisterRequest) (*pluginapi.Empty, error) {
	a.got <- r
	return &pluginapi.Empty{}, nil
}

// startAgent serves at a new socket until stop is called.
func startAgent(t *testing.T, socket string) (got chan *pluginapi.RegisterRequest, stop func()) {
	t.Helper()
	var config net.ListenConfig
	l, err := config.Listen(t.Context(), "unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	a := &agent{got: make(chan *pluginapi.RegisterRequest, 10)}
	s := grpc.NewServer()
	pluginapi.RegisterRegistrationServer(s, a)
	go func() { _ = s.Serve(l) }()
	t.Cleanup(s.Stop)
	return a.got, s.Stop
}

// start runs a plugin until the test ends.
func start(t *testing.T, o Options, p *Plan) Options {
	t.Helper()
	dir := t.TempDir()
	o.Resource, o.Plan, o.Calls = "example.com/device", filepath.Join(dir, "plan"), filepath.Join(dir, "calls")
	if o.Socket == "" {
		o.Socket = filepath.Join(dir, "plugin.sock")
	}
	if err := p.Write(o.Plan); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- Run(ctx, o) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("the plugin has ended with %v", err)
		}
	})
	return o
}

func dial(t *testing.T, socket string) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.WaitForReady(true)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func client(t *testing.T, socket string) pluginapi.DevicePluginClient {
	return pluginapi.NewDevicePluginClient(dial(t, socket))
}

func allocate(ctx context.Context, c pluginapi.DevicePluginClient, ids ...string) (*pluginapi.AllocateResponse, error) {
	return c.Allocate(ctx, &pluginapi.AllocateRequest{
		ContainerRequests: []*pluginapi.ContainerAllocateRequest{{DevicesIds: ids}},
	})
}

func TestRegistersAgainWhenTheAgentHasAnotherSocket(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "kubelet.sock")
	o := Options{Kubelet: socket, Socket: filepath.Join(filepath.Dir(socket), "a.sock")}
	start(t, o, &Plan{Devices: Devices("a"), PreStart: true})
	for range 2 {
		got, stop := startAgent(t, socket)
		r := <-got
		if r.GetEndpoint() != "a.sock" || r.GetResourceName() != "example.com/device" || r.GetVersion() != "v1beta1" ||
			!r.GetOptions().GetPreStartRequired() {
			t.Errorf("it registers with %v", r)
		}
		// As an agent at its start does: the plugin's socket goes too.
		stop()
		if err := os.Remove(o.Socket); err != nil {
			t.Error(err)
		}
	}
}

func TestListAndWatchFollowsThePlan(t *testing.T) {
	o := start(t, Options{Kubelet: "/nowhere"}, &Plan{Devices: Devices("a", "b")})
	stream, err := client(t, o.Socket).ListAndWatch(t.Context(), &pluginapi.Empty{})
	if err != nil {
		t.Fatal(err)
	}
	receive := func(want string) {
		t.Helper()
		got, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		var all []string
		for _, d := range got.GetDevices() {
			all = append(all, fmt.Sprintf("%s %s %v", d.GetID(), d.GetHealth(), d.GetTopology().GetNodes()))
		}
		if list := strings.Join(all, "; "); list != want {
			t.Errorf("the list is %q, want %q", list, want)
		}
	}
	receive("a Healthy []; b Healthy []")
	p := &Plan{Devices: []Device{{ID: "b", Unhealthy: true}, {ID: "c", NUMA: []int64{1}}}}
	if err := p.Write(o.Plan); err != nil {
		t.Fatal(err)
	}
	receive("b Unhealthy []; c Healthy [ID:1]")
	p.Rules = []Rule{{Method: List, After: true, Code: codes.Aborted, Message: "gone"}}
	if err := p.Write(o.Plan); err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); status.Code(err) != codes.Aborted {
		t.Errorf("the stream ends with %v", err)
	}
}

func TestAllocate(t *testing.T) {
	files := t.TempDir()
	o := start(t, Options{Kubelet: "/nowhere", Files: files}, &Plan{Devices: Devices("a", "b")})
	c := client(t, o.Socket)
	got, err := allocate(t.Context(), c, "b", "a")
	if err != nil || len(got.GetContainerResponses()) != 1 {
		t.Fatal(got, err)
	}
	r := got.GetContainerResponses()[0]
	if ids := r.GetEnvs()["DEVICES_EXAMPLE_COM_DEVICE"]; ids != "a,b" {
		t.Errorf("the variable is %q of %v", ids, r.GetEnvs())
	}
	if len(r.GetMounts()) != 2 || r.GetMounts()[0].GetContainerPath() != "/devices/device/a" ||
		len(r.GetDevices()) != 2 || r.GetDevices()[1].GetContainerPath() != "/dev/device-b" {
		t.Errorf("the container gets %v and %v", r.GetMounts(), r.GetDevices())
	}
	if text, err := os.ReadFile(filepath.Join(files, "a")); err != nil || string(text) != "a\n" {
		t.Errorf("the file of a device contains %q, %v", text, err)
	}

	none, p := 0, &Plan{}
	for _, tc := range []struct {
		name string
		rule Rule
		is   func(*pluginapi.AllocateResponse, error) bool
	}{
		{"error", Rule{Method: Allocate, Code: codes.Internal}, func(_ *pluginapi.AllocateResponse, err error) bool {
			return status.Code(err) == codes.Internal
		}},
		{"nothing", Rule{Containers: &none}, func(r *pluginapi.AllocateResponse, err error) bool {
			return err == nil && len(r.GetContainerResponses()) == 0
		}},
		{"nonsense", Rule{Answer: &Answer{CDI: []string{"x"}}}, func(r *pluginapi.AllocateResponse, err error) bool {
			return err == nil && r.GetContainerResponses()[0].GetCdiDevices()[0].GetName() == "x"
		}},
		{"another method", Rule{Method: PreStart, Code: codes.Internal}, func(_ *pluginapi.AllocateResponse, err error) bool {
			return err == nil
		}},
	} {
		p.Rules = []Rule{tc.rule}
		if err := p.Write(o.Plan); err != nil {
			t.Fatal(err)
		}
		if got, err := allocate(t.Context(), c, "a"); !tc.is(got, err) {
			t.Errorf("%s: the answer is %v, %v", tc.name, got, err)
		}
	}
}

func TestHeldCallGoesOn(t *testing.T) {
	p := &Plan{Rules: []Rule{{Method: Allocate, Hold: true}}}
	o := start(t, Options{Kubelet: "/nowhere"}, p)
	c := client(t, o.Socket)
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if _, err := allocate(ctx, c, "a"); status.Code(err) != codes.DeadlineExceeded {
		t.Errorf("a held call ends with %v", err)
	}
	ended := make(chan error, 1)
	go func() {
		_, err := allocate(t.Context(), c, "b")
		ended <- err
	}()
	ofB := func(l Line) bool { return l.Method == Allocate && slices.Equal(l.Devices[0], []string{"b"}) }
	await(t, o, ofB)
	p.Rules = nil
	if err := p.Write(o.Plan); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if l := await(t, o, func(l Line) bool { return ofB(l) && l.Ends() }); !l.OK() || l.PID != os.Getpid() {
		t.Errorf("the line is %+v", l)
	}
}

// await returns the first line that is wanted.
func await(t *testing.T, o Options, wanted func(Line) bool) Line {
	t.Helper()
	for range 1000 {
		lines, err := ReadCalls(o.Calls)
		if err != nil {
			t.Fatal(err)
		}
		if i := slices.IndexFunc(lines, wanted); i >= 0 {
			return lines[i]
		}
		time.Sleep(10 * time.Millisecond) // real sockets, so real time
	}
	t.Fatal("no line is as wanted")
	return Line{}
}

func TestPreferredAllocation(t *testing.T) {
	p := &Plan{Preferred: true}
	o := start(t, Options{Kubelet: "/nowhere"}, p)
	c := client(t, o.Socket)
	options, err := c.GetDevicePluginOptions(t.Context(), &pluginapi.Empty{})
	if err != nil || !options.GetGetPreferredAllocationAvailable() || options.GetPreStartRequired() {
		t.Errorf("the options are %v, %v", options, err)
	}
	for _, choice := range [][]string{nil, {"none"}} {
		want := []string{"a", "c"}
		if choice != nil {
			p.Rules, want = []Rule{{Choice: choice}}, choice
		}
		if err := p.Write(o.Plan); err != nil {
			t.Fatal(err)
		}
		got, err := c.GetPreferredAllocation(t.Context(), &pluginapi.PreferredAllocationRequest{
			ContainerRequests: []*pluginapi.ContainerPreferredAllocationRequest{{
				AvailableDeviceIDs: []string{"a", "b", "c"}, MustIncludeDeviceIDs: []string{"a"}, AllocationSize: 2,
			}},
		})
		if err != nil || !slices.Equal(got.GetContainerResponses()[0].GetDeviceIDs(), want) {
			t.Errorf("it prefers %v, %v, want %v", got, err, want)
		}
	}
}

func TestFoundInTheRegistry(t *testing.T) {
	registry := filepath.Join(t.TempDir(), "device-reg.sock")
	o := start(t, Options{Registry: registry}, &Plan{Devices: Devices("a")})
	c := registerapi.NewRegistrationClient(dial(t, registry))
	info, err := c.GetInfo(t.Context(), &registerapi.InfoRequest{})
	if err != nil || info.GetType() != registerapi.DevicePlugin || info.GetName() != o.Resource ||
		info.GetEndpoint() != o.Socket || !slices.Equal(info.GetSupportedVersions(), []string{"v1beta1"}) {
		t.Errorf("it says %v, %v", info, err)
	}
	_, err = c.NotifyRegistrationStatus(t.Context(), &registerapi.RegistrationStatus{Error: "no"})
	if l := await(t, o, Line.Ends); err == nil || l.Method != Register || l.Message != "no" {
		t.Errorf("a refusal: %v, %+v", err, l)
	}
}

func TestNumbersGoOn(t *testing.T) {
	path := filepath.Join(t.TempDir(), "calls")
	for want := 1; want <= 2; want++ {
		w, err := newWatcher(path, "s", func() (*Plan, error) { return &Plan{}, nil })
		if err != nil {
			t.Fatal(err)
		}
		if got := w.begin(Line{Method: Allocate}); got != want {
			t.Errorf("call %d has the number %d", want, got)
		}
		if err := w.close(); err != nil {
			t.Error(err)
		}
	}
	lines, err := ReadCalls(path)
	if err != nil || len(lines) != 4 || lines[2].Method != "" || lines[3].Number != 2 {
		t.Errorf("%+v, %v", lines, err)
	}
}

func TestExit(t *testing.T) {
	exited := errors.New("exit")
	w := &watcher{
		plan: func() (*Plan, error) { return &Plan{Rules: []Rule{{Number: 1, Exit: true, After: true}}}, nil },
		exit: func() { panic(exited) },
	}
	defer func() {
		if got := recover(); got != exited { //nolint:errorlint // it is the very one
			t.Errorf("the call ends with %v", got)
		}
	}()
	worked := false
	_ = w.call(t.Context(), Line{Method: Allocate}, func(*Rule) error { worked = true; return nil })
	t.Errorf("the plugin lives on, worked: %t", worked)
}

func TestOptions(t *testing.T) {
	for _, tc := range []struct {
		o    Options
		want string
	}{
		{Options{Resource: "device", Socket: "/a/s", Kubelet: "/a/k"}, "the resource is"},
		{Options{Resource: "a/b", Kubelet: "/a/k"}, "the socket is empty"},
		{Options{Resource: "a/b", Socket: "/a/s"}, "write one of"},
		{Options{Resource: "a/b", Socket: "/a/s", Kubelet: "/a/k", Registry: "/b/r"}, "write one of"},
		{Options{Resource: "a/b", Socket: "/a/s", Registry: "/a/r"}, "in the folder of"},
	} {
		if err := Run(t.Context(), tc.o); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%+v: %v, want %q", tc.o, err, tc.want)
		}
	}
}

func TestUnreadableFiles(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, []byte("no JSON\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := readPlan(path); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("the plan: %v", err)
	}
	if _, err := ReadCalls(path); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("the calls: %v", err)
	}
}
