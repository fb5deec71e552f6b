package test

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	resourcesv1 "github.com/microlet/microlet/proto/microlet/resources/v1"
	"github.com/microlet/microlet/services/internal/testing/proctest"
)

// driver is a plugin.
type driver struct {
	registerapi.UnimplementedRegistrationServer
	info       *registerapi.PluginInfo
	registered chan *registerapi.RegistrationStatus
}

func (d *driver) GetInfo(context.Context, *registerapi.InfoRequest) (*registerapi.PluginInfo, error) {
	return d.info, nil
}

func (d *driver) NotifyRegistrationStatus(_ context.Context, s *registerapi.RegistrationStatus) (
	*registerapi.RegistrationStatusResponse, error,
) {
	select {
	case d.registered <- s:
	default:
	}
	return &registerapi.RegistrationStatusResponse{}, nil
}

// TestPlugins: a plugin learns that it is not used, and does not wait for an answer that never comes.
func TestPlugins(t *testing.T) {
	n := newNode(t)
	n.start()
	dir := filepath.Join(n.root, "plugins_registry")
	proctest.Await(t, soon, "podsync has made the folder of plugins", func() bool {
		_, err := os.Stat(dir)
		return err == nil
	})
	l, err := net.Listen("unix", filepath.Join(dir, "driver.sock"))
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	defer server.Stop()
	d := &driver{registered: make(chan *registerapi.RegistrationStatus, 1),
		info: &registerapi.PluginInfo{Type: registerapi.DRAPlugin, Name: "driver.example"}}
	registerapi.RegisterRegistrationServer(server, d)
	go func() { _ = server.Serve(l) }()
	var status *registerapi.RegistrationStatus
	proctest.Await(t, soon, "the plugin gets its status", func() bool {
		select {
		case status = <-d.registered:
			return true
		default:
			return false
		}
	})
	const want = "no handler registered for plugin type: DRAPlugin"
	if status.GetPluginRegistered() || !strings.Contains(status.GetError(), want) {
		t.Errorf("the plugin gets %v, want %q", status, want)
	}
}

func (r *resources) RegisterPlugin(_ context.Context,
	request *resourcesv1.RegisterPluginRequest) (*resourcesv1.RegisterPluginResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.registered = append(r.registered, request)
	return &resourcesv1.RegisterPluginResponse{}, nil
}

func (r *resources) DeregisterPlugin(context.Context,
	*resourcesv1.DeregisterPluginRequest) (*resourcesv1.DeregisterPluginResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.deregistered++
	return &resourcesv1.DeregisterPluginResponse{}, nil
}

func (*resources) ListPlugins(context.Context,
	*resourcesv1.ListPluginsRequest) (*resourcesv1.ListPluginsResponse, error) {
	return &resourcesv1.ListPluginsResponse{}, nil
}

func (r *resources) registrations() (registered, deregistered int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.registered), r.deregistered
}

// A device plugin is passed on to resources, to a resources that starts again as well, and taken back when its socket
// is gone.
func TestADevicePluginIsPassedOn(t *testing.T) {
	n := newNode(t)
	r := n.resources(nil)
	n.start()
	dir := filepath.Join(n.root, "plugins_registry")
	proctest.Await(t, soon, "podsync has made the folder of plugins", func() bool {
		_, err := os.Stat(dir)
		return err == nil
	})
	l, err := net.Listen("unix", filepath.Join(dir, "gpu.sock"))
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	d := &driver{registered: make(chan *registerapi.RegistrationStatus, 1), info: &registerapi.PluginInfo{
		Type: registerapi.DevicePlugin, Name: "example.com/gpu", SupportedVersions: []string{"v1beta1"},
		Endpoint: filepath.Join(n.root, "plugins_registry", "gpu.sock"),
	}}
	registerapi.RegisterRegistrationServer(server, d)
	go func() { _ = server.Serve(l) }()
	proctest.Await(t, soon, "the plugin is registered", func() bool { n, _ := r.registrations(); return n == 1 })
	if got := r.registered[0]; got.GetResource() != "example.com/gpu" || got.GetEndpoint() != d.info.GetEndpoint() ||
		len(got.GetVersions()) != 1 {
		t.Errorf("registered %v", got)
	}
	if status := <-d.registered; !status.GetPluginRegistered() {
		t.Errorf("the plugin gets %v", status)
	}
	r.stop()
	r = n.resources(nil)
	proctest.Await(t, soon, "another resources has the plugin", func() bool { n, _ := r.registrations(); return n == 1 })
	server.Stop() // which removes the socket
	proctest.Await(t, soon, "the plugin is taken back", func() bool { _, n := r.registrations(); return n == 1 })
}
