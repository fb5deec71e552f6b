// Package grpcapi connects podsync's gRPC services with what answers their callers.
package grpcapi

import (
	"log/slog"

	"k8s.io/client-go/tools/record"

	"github.com/microlet/microlet/services/internal/service"
	"github.com/microlet/microlet/services/podsync/internal/api"
	"github.com/microlet/microlet/services/podsync/internal/housekeeping"
	"github.com/microlet/microlet/services/podsync/internal/podadmission"
	"github.com/microlet/microlet/services/podsync/internal/podeviction"
	"github.com/microlet/microlet/services/podsync/internal/podexplanation"
	"github.com/microlet/microlet/services/podsync/internal/podsetup"
	"github.com/microlet/microlet/services/podsync/internal/sources"
	"github.com/microlet/microlet/services/podsync/internal/status"
	"github.com/microlet/microlet/services/podsync/internal/worker"
)

// Options are what the services of podsync answer from.
type Options struct {
	NodeName string
	// Gated are the pod fields that are supported because their feature gate is on.
	Gated        []string
	PLEG         api.PLEG
	Sources      *sources.Sources
	Admission    *podadmission.Admission
	Dispatcher   *worker.Dispatcher
	Workers      *worker.Workers
	Resources    *podsetup.Resources
	Reports      *status.Reports
	Housekeeping *housekeeping.Housekeeping
	Events       record.EventRecorder
	Log          *slog.Logger
}

// Register has s answer the callers of podsync.
func Register(s *service.Service, o Options) {
	api.Register(s, api.Deps{
		Workers: o.Workers,
		PLEG:    o.PLEG,
		Pods:    o.Sources.Local,
		Mirrors: o.Reports.Mirrors,
		Evictor: podeviction.New(o.Workers, o.Events, o.Log, s.Metrics),
		Dead:    o.Housekeeping,
		Volumes: o.Resources.Volumes,
	})
	podexplanation.Register(s.GRPC, s, podexplanation.Deps{
		NodeName: o.NodeName, Gated: o.Gated, Sources: o.Sources.Kinds(), Workers: o.Workers, Dispatcher: o.Dispatcher,
		Statuses: o.Reports.Mirrors, Probes: o.Reports.Probing, Pulls: o.Resources.Images, Judge: o.Admission,
	})
}
