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

	"github.com/microlet/microlet/services/internal/testing/proctest"
)

// driver is a plugin of a type that podsync has no handler for.
type driver struct {
	registerapi.UnimplementedRegistrationServer
	registered chan *registerapi.RegistrationStatus
}

func (*driver) GetInfo(context.Context, *registerapi.InfoRequest) (*registerapi.PluginInfo, error) {
	return &registerapi.PluginInfo{Type: registerapi.DRAPlugin, Name: "driver.example"}, nil
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
	d := &driver{registered: make(chan *registerapi.RegistrationStatus, 1)}
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
