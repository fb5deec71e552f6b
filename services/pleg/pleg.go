package pleg

import (
	"context"
	"time"

	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/protobuf/types/known/timestamppb"

	plegv1 "github.com/microlet/microlet/proto/microlet/pleg/v1"
	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/proto/subject"
	"github.com/microlet/microlet/services/internal/crilist"
	"github.com/microlet/microlet/services/internal/service"
	"github.com/microlet/microlet/services/pleg/internal/cri"
	"github.com/microlet/microlet/services/pleg/internal/hint"
	"github.com/microlet/microlet/services/pleg/internal/relist"
)

// HealthRelist is the gRPC health service that serves while relists succeed.
const HealthRelist = "microlet.pleg.relist"

// Run runs pleg until ctx ends.
func Run(ctx context.Context, cfg Config) error {
	if err := cfg.Validate(); err != nil {
		return err
	}
	s, runtime, err := service.NewWithCRI(cfg.Service, role.PLEG)
	if err != nil {
		return err
	}
	defer runtime.Close()
	hinter := hint.New(s.Bus, s.Pulse.Turns, s.Log, s.Metrics)
	plegv1.RegisterPlegServiceServer(s.GRPC, hinter)
	s.Offer(&plegv1.PlegService_ServiceDesc, role.Podsync)
	read := cri.New(runtime, crilist.Options{Log: s.Log, Metrics: s.Metrics})
	engine := relist.New(relist.Options{
		Lister: read, Streamer: read, Sink: hinter,
		Reported: report(s, hinter), Turned: s.Pulse.Turn,
		Fastest: cfg.RelistPeriod, Slowest: cfg.SlowestRelistPeriod, ListTimeout: cfg.ListTimeout,
		Log: s.Log, Metrics: s.Metrics,
	})
	s.Go("relist", engine.Run)
	s.Go("hints", hinter.Run)
	s.Go("relist health", func(ctx context.Context) error { return reportHealth(ctx, s, engine) })
	s.Ready("following the runtime")
	return s.Run(ctx)
}

// report returns what puts the engine's reports at RUNTIME/relist, and gives the relists that succeed to the hints.
func report(s *service.Service, hinter *hint.Hinter) func(relist.Report) {
	w := s.Bus.Own(subject.Runtime)
	return func(r relist.Report) {
		m := &plegv1.Relist{
			Generation: r.Generation, Streaming: r.Streaming, PeriodMilliseconds: r.Period.Milliseconds(),
		}
		if !r.Began.IsZero() {
			m.Began = timestamppb.New(r.Began)
		}
		if r.Err != nil {
			m.Error = r.Err.Error()
		} else {
			hinter.Relisted(r.Generation)
		}
		w.Put(subject.RuntimeRelist, m)
		w.Complete() // it is the bucket's only key
	}
}

// reportHealth keeps HealthRelist as the engine says.
func reportHealth(ctx context.Context, s *service.Service, engine *relist.Engine) error {
	t := time.NewTicker(time.Second)
	defer t.Stop()
	for {
		status := grpc_health_v1.HealthCheckResponse_SERVING
		if engine.Healthy() != nil {
			status = grpc_health_v1.HealthCheckResponse_NOT_SERVING
		}
		s.Health.SetServingStatus(HealthRelist, status)
		select {
		case <-ctx.Done():
			return nil
		case <-t.C:
		}
	}
}
