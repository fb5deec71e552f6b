package service

import (
	"context"

	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/services/internal/telemetry"
	"github.com/microlet/microlet/services/internal/tracing"
)

// trace has the service send its spans to nodestatus, if the node traces. The supervisor and the bus have none.
func (s *Service) trace() error {
	if s.Config.Tracing == nil || s.Role == role.Up || s.Role == role.Bus {
		return nil
	}
	// The connection is made before there is a Tracer: what sends spans is no span.
	conn, err := s.Dial(context.Background(), role.NodeStatus)
	if err != nil {
		return err
	}
	tracer, err := tracing.New(tracing.Options{
		Config: *s.Config.Tracing, Service: string(s.Role), Replica: s.Config.Replica, Version: telemetry.Version,
		Node: s.Config.NodeName, Log: s.Log, Metrics: s.Metrics,
		Send: func(ctx context.Context, spans *tracepb.TracesData) error {
			return conn.Invoke(ctx, tracing.ExportMethod, spans, &emptypb.Empty{})
		},
	})
	if err != nil {
		return err
	}
	s.Tracer = tracer
	s.Go("traces", func(ctx context.Context) error {
		defer conn.Close()
		return tracer.Run(ctx)
	})
	return nil
}
