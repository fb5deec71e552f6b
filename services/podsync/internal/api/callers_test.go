package api

import (
	"context"
	"os"
	"slices"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	podsyncv1 "github.com/microlet/microlet/proto/microlet/podsync/v1"
	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/services/internal/bus"
	"github.com/microlet/microlet/services/internal/service"
	"github.com/microlet/microlet/services/internal/testing/proctest"
)

// callers are the roles that may call podsync's services.
var callers = map[string][]role.Role{
	podsyncv1.LocalPodService_ServiceDesc.ServiceName:    {role.Up},
	podsyncv1.ExplainService_ServiceDesc.ServiceName:     {role.Up},
	podsyncv1.EvictionService_ServiceDesc.ServiceName:    {role.Evictor},
	podsyncv1.VolumeStatsService_ServiceDesc.ServiceName: {role.Stats},
	grpc_health_v1.Health_ServiceDesc.ServiceName:        role.All(),
}

// malformed is a request that no method can decode, so that a call which podsync accepts does nothing.
type malformed struct{}

func (malformed) Marshal(any) ([]byte, error) { return []byte{0xff}, nil }
func (malformed) Unmarshal([]byte, any) error { return nil }
func (malformed) Name() string                { return "proto" }

// TestEveryServiceForEveryRole calls every method as every role.
func TestEveryServiceForEveryRole(t *testing.T) {
	cfg := service.DefaultConfig()
	cfg.RuntimeDir, cfg.Placement = proctest.TempDir(t, 0o755), &service.InProcess{}
	var ids []role.Identity
	for _, r := range role.All() {
		ids = append(ids, role.Identity{Role: r, UID: os.Getuid(), GID: os.Getgid()})
	}
	if err := bus.GenerateNKeys(cfg.NKeys(), ids); err != nil {
		t.Fatal(err)
	}
	podsync, err := service.New(cfg, role.Podsync)
	if err != nil {
		t.Fatal(err)
	}
	Register(podsync, Deps{})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- podsync.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	methods := methodsOf(t, podsync.GRPC)
	for _, r := range role.All() {
		caller := podsync
		if r != role.Podsync {
			if caller, err = service.New(cfg, r); err != nil {
				t.Fatal(err)
			}
		}
		conn, err := caller.Dial(t.Context(), role.Podsync)
		if err != nil {
			t.Fatal(err)
		}
		for method, may := range methods {
			err := conn.Invoke(t.Context(), method, malformed{}, nil, grpc.ForceCodec(malformed{}), grpc.WaitForReady(true))
			want := codes.PermissionDenied
			if slices.Contains(may, r) {
				want = codes.Internal // it could not be decoded
			}
			if status.Code(err) != want {
				t.Errorf("%s calls %s: %v, want %v", r, method, err, want)
			}
		}
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
	}
}

// methodsOf are the full names of a server's unary methods, with the roles that may call them.
func methodsOf(t *testing.T, s *grpc.Server) map[string][]role.Role {
	t.Helper()
	methods := map[string][]role.Role{}
	// A method of PodsyncService may be called by the roles that may call the method which replaces it.
	former := map[string][]role.Role{
		"GetHealth": {role.NodeStatus, role.Up}, "GetNodeVolumes": {role.NodeStatus}, "WakePod": {role.PLEG},
	}
	services := s.GetServiceInfo()
	for name := range callers {
		for _, m := range services[name].Methods {
			if !m.IsServerStream {
				methods["/"+name+"/"+m.Name], former[m.Name] = callers[name], callers[name]
			}
		}
		delete(services, name)
	}
	for name, service := range services {
		if name != podsyncv1.PodsyncService_ServiceDesc.ServiceName {
			t.Errorf("the test does not know who may call %s", name)
		}
		for _, m := range service.Methods {
			if former[m.Name] == nil {
				t.Errorf("the test does not know who may call %s of %s", m.Name, name)
			}
			methods["/"+name+"/"+m.Name] = former[m.Name]
		}
	}
	return methods
}
