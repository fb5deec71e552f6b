package up

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"time"

	busv1 "github.com/microlet/microlet/proto/microlet/bus/v1"
	supervisorv1 "github.com/microlet/microlet/proto/microlet/supervisor/v1"
	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/proto/subject"
	"github.com/microlet/microlet/services/internal/bus"
	"github.com/microlet/microlet/services/internal/kubeletconfig"
	"github.com/microlet/microlet/services/internal/service"
	"github.com/microlet/microlet/services/internal/telemetry"
	"github.com/microlet/microlet/services/microlet/internal/group"
)

const (
	// heardPeriod is how often ExternalStatus looks whether the bus has sent all heartbeats.
	heardPeriod = 20 * time.Millisecond
	// Units names the placement in which no "microlet up" runs: units or containers start all services.
	Units = "units"
)

// ExternalStatus accounts for the services of a node on which no "microlet up" runs, by their heartbeats. Only root can
// read the key with which it asks the bus. It fails if the bus does not answer before ctx ends, and with fs.ErrNotExist
// if "microlet prepare" has not run for units.
func ExternalStatus(ctx context.Context, cfg service.Config) (*supervisorv1.GetStatusResponse, error) {
	peers, err := PreparedPeers(cfg.RuntimeDir)
	if err != nil {
		return nil, err
	}
	cfg.PeerCgroups = append(cfg.PeerCgroups, peers...)
	client, err := bus.New(bus.Options{
		Socket: cfg.BusSocket(), Peers: cfg.Peers(), SeedFile: bus.SeedFile(cfg.NKeys(), role.Up), Role: role.Up,
		Replica: service.DefaultReplica, Log: slog.New(slog.NewTextHandler(io.Discard, nil)),
	})
	if err != nil {
		return nil, err
	}
	heartbeats := bus.Watch[busv1.Heartbeat](client, subject.Heartbeats, ">", nil)
	running, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- client.Run(running) }()
	err = awaitSynced(ctx, heartbeats)
	stop()
	if err = errors.Join(err, <-ended); err != nil {
		return nil, fmt.Errorf("ask the bus on %s: %w", cfg.BusSocket(), err)
	}
	all := DefaultConfig()
	s := &server{placement: Units, heartbeats: heartbeats, onDemand: all.onDemandRoles()}
	for _, r := range role.All() {
		if r != role.Up {
			s.externals = append(s.externals, r)
		}
	}
	out := &supervisorv1.GetStatusResponse{Version: telemetry.Version, Placement: Units}
	// What "microlet prepare" of another version wrote may not be readable; the services are shown without it.
	if k, err := kubeletconfig.ReadResolved(group.ResolvedFile(cfg.RuntimeDir, role.Podsync)); err == nil {
		out.Certificates = certificates(k)
	}
	for _, p := range s.external() {
		out.Processes = append(out.Processes, s.process(p))
	}
	return out, nil
}

// awaitSynced waits until all heartbeats have come that the bus has.
func awaitSynced(ctx context.Context, heartbeats *bus.View[*busv1.Heartbeat]) error {
	t := time.NewTicker(heardPeriod)
	defer t.Stop()
	for !heartbeats.Synced() {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-t.C:
		}
	}
	return nil
}
