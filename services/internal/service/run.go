package service

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/protobuf/types/known/timestamppb"

	busv1 "github.com/microlet/microlet/proto/microlet/bus/v1"
	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/proto/subject"
	"github.com/microlet/microlet/services/internal/logkey"
	"github.com/microlet/microlet/services/internal/run"
	"github.com/microlet/microlet/services/internal/telemetry"
)

const (
	// grpcStop is how long calls that are under way may take once the service stops.
	grpcStop = 2 * time.Second

	// hungAfter is how long the pulse may stand still before health says so: five of its periods.
	hungAfter = 10 * time.Second

	// minFresh is the least age that the watchdog allows the pulse. The period of the pulse is 2 s.
	minFresh = 3 * time.Second

	// slowStop is when a stop is slow enough for its reason to be logged.
	slowStop = 500 * time.Millisecond

	// flushTimeout bounds the wait for the log's reader at the end.
	flushTimeout = 500 * time.Millisecond
)

// Run runs the service until the context ends or a part of it fails, and returns when every part has
// ended; the context's end is no error. Parts that have not ended within the stop's timeout are an
// error that names them. Run is called once.
func (s *Service) Run(ctx context.Context) error {
	if s.ownsProcess() {
		defer telemetry.ProcessWriter().Flush(flushTimeout)
	}
	api, err := s.Listen(ReplicaSocket(s.Config.Socket(s.Role), s.Config.Replica))
	if err != nil {
		return err
	}
	metrics, err := s.Listen(ReplicaSocket(s.Config.MetricsSocket(s.Role), s.Config.Replica))
	if err != nil {
		return errors.Join(err, api.Close())
	}
	s.dropListeners()
	s.reportHeld()

	group, ctx := run.New(ctx)
	group.Go("grpc", func(ctx context.Context) error {
		return ServeGRPC(ctx, s.GRPC, func() error { return s.GRPC.Serve(api) })
	})
	group.Go("metrics", func(ctx context.Context) error {
		return telemetry.Serve(ctx, metrics, s.Config.Peers(), s.Metrics, s.alive)
	})
	group.Go("bus client", s.Bus.Run)
	if s.Role != role.Up { // the supervisor reads heartbeats; systemd watches over its own life
		group.Go("heartbeat", s.heartbeat)
	}
	group.Go("watchdog", s.feedWatchdog)
	group.Go("health", s.watchHealth)
	s.adopt(group)

	<-ctx.Done()
	s.Log.Info("service stops", "cause", context.Cause(ctx))
	s.notify(run.NotifyStopping)
	s.Health.Shutdown()
	err = s.waitBounded(group)
	if err != nil {
		s.Log.Error("service ended with an error", logkey.Err, err)
	}
	return err
}

// adopt starts what Go was given before, and lets it start what comes.
func (s *Service) adopt(group *run.Group) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.group = group
	for _, t := range s.waiting {
		group.Go(t.name, t.f)
	}
	s.waiting = nil
}

// waitBounded waits for the group's end, but not for ever, and names what it waits for.
func (s *Service) waitBounded(group *run.Group) error {
	done := make(chan error, 1)
	go func() { done <- group.Wait() }()
	slow := time.NewTimer(slowStop)
	defer slow.Stop()
	end := time.NewTimer(s.Config.StopTimeout)
	defer end.Stop()
	for {
		select {
		case err := <-done:
			return err
		case <-slow.C:
			s.Log.Info("service is still stopping", "waits", group.Running())
		case <-end.C:
			return fmt.Errorf("not stopped within %v: %s", s.Config.StopTimeout, strings.Join(group.Running(), ", "))
		}
	}
}

// ServeGRPC serves until the context ends, lets calls under way end for 2 s, and then cuts them.
func ServeGRPC(ctx context.Context, server *grpc.Server, serve func() error) error {
	served := make(chan error, 1)
	go func() { served <- serve() }()
	select {
	case err := <-served:
		return err
	case <-ctx.Done():
	}
	graceful := time.AfterFunc(grpcStop, server.Stop)
	defer graceful.Stop()
	server.GracefulStop()
	if err := <-served; !errors.Is(err, grpc.ErrServerStopped) { // stopped before it began to serve
		return err
	}
	return nil
}

// heartbeat puts the service's heartbeat every 5 s. It is put also when the loop stands still: the
// count in it shows that.
func (s *Service) heartbeat(ctx context.Context) error {
	w := s.Bus.Own(subject.Heartbeats)
	key := subject.HeartbeatKey(s.Role, s.Config.Replica)
	put := func() {
		w.Refresh(key, &busv1.Heartbeat{
			Version: telemetry.Version,
			Pid:     int32(os.Getpid()),
			Started: timestamppb.New(s.started),
			Turns:   s.Pulse.Turns(),
		})
	}
	put()
	w.Complete()
	t := time.NewTicker(subject.HeartbeatPeriod)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-t.C:
			put()
		}
	}
}

// feedWatchdog reports to the supervisor that the service lives, as long as its pulse beats, at a quarter of the time
// after which the supervisor acts. A process that is stopped cannot, and a loop that hangs must not be hidden by a
// goroutine that goes on.
func (s *Service) feedWatchdog(ctx context.Context) error {
	if s.watchdog == 0 {
		return nil
	}
	period := s.watchdog / 4
	fresh := max(period, minFresh)
	t := time.NewTicker(period)
	defer t.Stop()
	for {
		if idle := s.Pulse.Idle(); idle <= fresh {
			s.notify(run.NotifyWatchdog)
		} else {
			s.Log.Error("main loop stands still; the watchdog is not fed", "idle", idle.Round(time.Millisecond))
		}
		select {
		case <-ctx.Done():
			return nil
		case <-t.C:
		}
	}
}

// watchHealth changes the gRPC health as the pulse stops and comes back, once the service is ready.
func (s *Service) watchHealth(ctx context.Context) error {
	t := time.NewTicker(time.Second)
	defer t.Stop()
	serving := false
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-t.C:
		}
		if now := s.isReady() && s.alive() == nil; now != serving {
			serving = now
			s.setServing(now)
		}
	}
}

// alive says why the service is not: its own loop stands still. A service that waits for others, as for an apiserver
// that is away, is alive and not ready; a restart would not help.
func (s *Service) alive() error {
	if idle := s.Pulse.Idle(); idle > hungAfter {
		return fmt.Errorf("main loop has stood still for %v", idle.Round(time.Second))
	}
	return nil
}

func (s *Service) setServing(serving bool) {
	status := grpc_health_v1.HealthCheckResponse_NOT_SERVING
	if serving {
		status = grpc_health_v1.HealthCheckResponse_SERVING
	}
	s.Health.SetServingStatus("", status)
	s.Health.SetServingStatus("microlet."+string(s.Role), status)
}
