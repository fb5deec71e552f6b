package up

import (
	"context"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/health/grpc_health_v1"

	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/services/internal/bus"
	"github.com/microlet/microlet/services/internal/kubeletconfig"
	"github.com/microlet/microlet/services/internal/run"
	"github.com/microlet/microlet/services/internal/service"
	"github.com/microlet/microlet/services/internal/telemetry"
)

// TestAServiceThatWaitsIsNoFailedStart: systemd restarts what is not READY in time, and all services with the one that
// waits.
func TestAServiceThatWaitsIsNoFailedStart(t *testing.T) {
	// The log is the process's, and outlives the test's own time.
	if _, err := telemetry.ProcessLogger(DefaultConfig().Service.Log, "test"); err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		cfg := DefaultConfig()
		cfg.Service.RuntimeDir, cfg.Service.NodeName, cfg.Service.Placement = t.TempDir(), "n", &service.InProcess{}
		identity := role.Identity{Role: role.Up, UID: os.Getuid(), GID: os.Getgid()}
		if err := bus.GenerateNKeys(cfg.Service.NKeys(), []role.Identity{identity}); err != nil {
			t.Fatal(err)
		}
		waits := func(ctx context.Context, _ service.Config, _ *kubeletconfig.Config) error { <-ctx.Done(); return nil }
		cfg.Services = []service.Definition{{Role: role.Bus, Run: waits}, {Role: role.Podsync, Run: waits}}
		self, err := service.New(cfg.Service, role.Up)
		if err != nil {
			t.Fatal(err)
		}
		s := newSingle(&cfg, self)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- s.Run(ctx) }()
		ready := func() bool {
			answer, err := self.Health.Check(ctx, &grpc_health_v1.HealthCheckRequest{})
			if err != nil {
				t.Fatal(err)
			}
			return answer.GetStatus() == grpc_health_v1.HealthCheckResponse_SERVING
		}
		time.Sleep(time.Second)
		synctest.Wait()
		cfg.Service.Placement.Notify(role.Bus, run.NotifyReady)
		time.Sleep(10 * time.Second)
		if ready() {
			t.Error("ready while podsync starts")
		}
		time.Sleep(time.Minute) // less than the unit's TimeoutStartSec
		if !ready() {
			t.Error("not ready, since podsync waits")
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}
