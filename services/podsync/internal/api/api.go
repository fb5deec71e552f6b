// Package api serves podsync's gRPC API to nodestatus, pleg, evictor, stats and root.
//
// It reports whether podsync's dispatcher makes progress, evicts pods for evictor, asks for stats how full volumes are,
// wakes workers for an older pleg, and runs and removes the pods of "microlet run-pod". Only root may do the last,
// because such a pod can be anything.
package api

import (
	"context"

	"k8s.io/apimachinery/pkg/types"

	podsyncv1 "github.com/microlet/microlet/proto/microlet/podsync/v1"
	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/services/internal/service"
	"github.com/microlet/microlet/services/podsync/internal/api/internal/explain"
)

// Workers wake the workers of pods.
type Workers interface {
	Wake(uid types.UID, reason string)
	WakeAll(reason string)
}

// server is podsync's service.
type server struct {
	localPods
	pulse   *service.Pulse
	workers Workers
	evictor Evictor
	dead    DeadContainers
	volumes Volumes
}

// Deps are what answers the callers.
type Deps struct {
	Workers Workers
	Pods    LocalPods
	Mirrors Mirrors
	Evictor Evictor
	Dead    DeadContainers
	Volumes Volumes
	Explain ExplainDeps
}

// ExplainDeps are what ExplainService answers from.
type ExplainDeps = explain.Deps

// Register has s answer its callers, each role those that it may call.
func Register(s *service.Service, d Deps) {
	podsyncv1.RegisterPodsyncServiceServer(s.GRPC, &server{
		localPods: localPods{pods: d.Pods, mirrors: d.Mirrors}, pulse: s.Pulse, workers: d.Workers,
		evictor: d.Evictor, dead: d.Dead, volumes: d.Volumes,
	})
	for method, roles := range callers {
		s.Allow(method, roles...)
	}
	explain.Register(s.GRPC, s, d.Explain)
}

// callers are who may call what; root alone runs pods, evictor alone evicts them, and stats alone measures.
var callers = map[string][]role.Role{
	podsyncv1.PodsyncService_GetHealth_FullMethodName:            {role.NodeStatus, role.Up},
	podsyncv1.PodsyncService_WakePod_FullMethodName:              {role.PLEG},
	podsyncv1.PodsyncService_Evict_FullMethodName:                {role.Evictor},
	podsyncv1.PodsyncService_RemoveDeadContainers_FullMethodName: {role.Evictor},
	podsyncv1.PodsyncService_GetVolumeStats_FullMethodName:       {role.Stats},
	podsyncv1.PodsyncService_RunPod_FullMethodName:               {role.Up},
	podsyncv1.PodsyncService_RemovePod_FullMethodName:            {role.Up},
	podsyncv1.PodsyncService_GetLocalPod_FullMethodName:          {role.Up},
	podsyncv1.PodsyncService_ListLocalPods_FullMethodName:        {role.Up},
}

// GetHealth reports whether the dispatcher works.
func (s *server) GetHealth(context.Context, *podsyncv1.GetHealthRequest) (*podsyncv1.GetHealthResponse, error) {
	return &podsyncv1.GetHealthResponse{Turns: s.pulse.Turns(), IdleMilliseconds: s.pulse.Idle().Milliseconds()}, nil
}

// WakePod is a hint of a pleg that serves no stream of hints, when the bus is away.
func (s *server) WakePod(_ context.Context, r *podsyncv1.WakePodRequest) (*podsyncv1.WakePodResponse, error) {
	if r.GetPodUid() == "" {
		s.workers.WakeAll("pleg")
	} else {
		s.workers.Wake(types.UID(r.GetPodUid()), "pleg")
	}
	return &podsyncv1.WakePodResponse{}, nil
}
