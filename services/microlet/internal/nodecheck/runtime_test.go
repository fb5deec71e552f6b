package nodecheck

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"testing"

	"google.golang.org/grpc"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// cri is a runtime that answers what a check asks.
type cri struct {
	runtimeapi.UnimplementedRuntimeServiceServer
	network bool
	down    bool
	driver  *runtimeapi.CgroupDriver
}

func (*cri) Version(context.Context, *runtimeapi.VersionRequest) (*runtimeapi.VersionResponse, error) {
	return &runtimeapi.VersionResponse{RuntimeName: "containerd", RuntimeVersion: "2.4.2", RuntimeApiVersion: "v1"}, nil
}

func (c *cri) Status(context.Context, *runtimeapi.StatusRequest) (*runtimeapi.StatusResponse, error) {
	return &runtimeapi.StatusResponse{Status: &runtimeapi.RuntimeStatus{Conditions: []*runtimeapi.RuntimeCondition{
		{Type: runtimeapi.RuntimeReady, Status: !c.down, Reason: "Starting"},
		{Type: runtimeapi.NetworkReady, Status: c.network, Reason: "NetworkPluginNotReady", Message: "cni not initialized"},
		{Type: "ContainerdHasNoDeprecationWarnings", Message: "cgroup v1 is deprecated"},
	}}}, nil
}

func (c *cri) RuntimeConfig(ctx context.Context,
	r *runtimeapi.RuntimeConfigRequest) (*runtimeapi.RuntimeConfigResponse, error) {
	if c.driver == nil {
		return c.UnimplementedRuntimeServiceServer.RuntimeConfig(ctx, r)
	}
	return &runtimeapi.RuntimeConfigResponse{
		Linux: &runtimeapi.LinuxRuntimeConfiguration{CgroupDriver: *c.driver},
	}, nil
}

// serve has the runtime listen, until the test ends.
func (c *cri) serve(t *testing.T) (endpoint string) {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "cri.sock")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server, done := grpc.NewServer(), make(chan error, 1)
	runtimeapi.RegisterRuntimeServiceServer(server, c)
	go func() { done <- server.Serve(l) }()
	t.Cleanup(func() {
		server.Stop()
		if err := <-done; err != nil && !errors.Is(err, grpc.ErrServerStopped) {
			t.Error(err)
		}
	})
	return "unix://" + socket
}

func TestRuntime(t *testing.T) {
	systemd, cgroupfs := runtimeapi.CgroupDriver_SYSTEMD, runtimeapi.CgroupDriver_CGROUPFS
	boot := map[string]string{"run/systemd/system/x": ""}
	for _, c := range []struct {
		name  string
		cri   *cri
		files map[string]string
		check string
		state State
		text  string
	}{
		{"version", &cri{}, nil, "runtime", OK, "containerd 2.4.2, CRI v1"},
		{"runtime is not ready", &cri{down: true}, nil, "runtime", Failed, "RuntimeReady is false: Starting"},
		{"a condition of its own", &cri{}, nil, "runtime", Warning, "cgroup v1 is deprecated"},
		{"network is not ready", &cri{}, nil, "cni", Failed, "NetworkPluginNotReady: cni not initialized"},
		{"network is ready", &cri{network: true}, nil, "cni", OK, "ready"},
		{"driver is not reported", &cri{}, nil, "cgroup driver", Warning, "does not report"},
		{"drivers differ", &cri{driver: &cgroupfs}, boot, "cgroup driver", Warning,
			"the runtime uses cgroupfs, and cgroupDriver is systemd"},
		{"systemd does not run", &cri{driver: &systemd}, nil, "cgroup driver", Failed, "systemd does not run here"},
		{"driver", &cri{driver: &systemd}, boot, "cgroup driver", OK, "systemd"},
		{"no runtime", nil, nil, "runtime", Failed, "nothing serves"},
		{"no runtime and no network plugin", nil, nil, "cni", Warning, "no configuration"},
		{"no runtime and a network plugin", nil, map[string]string{"etc/cni/net.d/10-a.conflist": ""}, "cni", OK,
			"10-a.conflist"},
	} {
		k, r := config(t), &report{}
		k.Provenance["cgroupDriver"] = "flag --cgroup-driver"
		k.Kubelet.ContainerRuntimeEndpoint = "unix:///nonexistent/cri.sock"
		if c.cri != nil {
			k.Kubelet.ContainerRuntimeEndpoint = c.cri.serve(t)
		}
		machine(t, c.files).runtime(t.Context(), r, k)
		t.Run(c.name, func(t *testing.T) { r.expect(t, c.check, c.state, c.text) })
	}
}
