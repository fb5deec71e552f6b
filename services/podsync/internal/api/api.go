// Package api serves podsync's gRPC services to nodestatus, evictor, stats and root.
//
// PodsyncService reports whether podsync's dispatcher makes progress. EvictionService evicts pods for evictor,
// VolumeStatsService measures volumes for stats, LocalPodService runs and removes the pods of "microlet run-pod", and
// ExplainService says why a pod is not running. Only root may call the last two, because a local pod can be anything.
package api

import (
	"context"

	"google.golang.org/grpc"
	"k8s.io/apimachinery/pkg/types"

	podsyncv1 "github.com/microlet/microlet/proto/microlet/podsync/v1"
	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/services/internal/formername"
	"github.com/microlet/microlet/services/internal/service"
	"github.com/microlet/microlet/services/podsync/internal/api/internal/explain"
)

// Workers wake the workers of pods.
type Workers interface {
	Wake(uid types.UID, reason string)
	WakeAll(reason string)
}

// NodeVolumes is what the Node is to show of volumes.
type NodeVolumes interface {
	// NodeVolumes returns what podsync has reported last; nil is nothing yet.
	NodeVolumes() (inUse *podsyncv1.Volumes, drivers *podsyncv1.CSIDrivers)
}

// Deps are what answers the callers.
type Deps struct {
	Workers Workers
	Node    NodeVolumes
	Pods    LocalPods
	Mirrors Mirrors
	Evictor Evictor
	Dead    DeadContainers
	Volumes Volumes
	Explain ExplainDeps
}

// ExplainDeps are what ExplainService answers from.
type ExplainDeps = explain.Deps

// Register has s answer its callers, each role by the services that it may call.
func Register(s *service.Service, d Deps) {
	local, evict := &localPods{pods: d.Pods, mirrors: d.Mirrors}, &evictions{evictor: d.Evictor, dead: d.Dead}
	stats := &volumeStats{volumes: d.Volumes}
	podsyncv1.RegisterLocalPodServiceServer(s.GRPC, local)
	offer(s, &podsyncv1.LocalPodService_ServiceDesc, role.Up)
	podsyncv1.RegisterEvictionServiceServer(s.GRPC, evict)
	offer(s, &podsyncv1.EvictionService_ServiceDesc, role.Evictor)
	podsyncv1.RegisterVolumeStatsServiceServer(s.GRPC, stats)
	offer(s, &podsyncv1.VolumeStatsService_ServiceDesc, role.Stats)
	podsyncv1.RegisterExplainServiceServer(s.GRPC, explain.New(d.Explain))
	s.Offer(&podsyncv1.ExplainService_ServiceDesc, role.Up)

	podsyncv1.RegisterPodsyncServiceServer(s.GRPC, &podsync{
		pulse: s.Pulse, workers: d.Workers, node: d.Node, localPods: local, evictions: evict, volumeStats: stats,
	})
	s.Allow(podsyncv1.PodsyncService_GetHealth_FullMethodName, role.NodeStatus, role.Up)
	s.Allow(podsyncv1.PodsyncService_GetNodeVolumes_FullMethodName, role.NodeStatus)
	s.Allow(podsyncv1.PodsyncService_WakePod_FullMethodName, role.PLEG)
}

// offer has s offer a service whose methods are also those of PodsyncService, for callers of the previous version.
func offer(s *service.Service, d *grpc.ServiceDesc, roles ...role.Role) {
	s.Offer(d, roles...)
	for _, m := range d.Methods {
		s.Allow(formername.Of(m.MethodName), roles...)
	}
}

// podsync is PodsyncService. Callers of the previous version find the methods of the other services here.
type podsync struct {
	podsyncv1.UnsafePodsyncServiceServer // a missing method is an error of the compiler
	pulse                                *service.Pulse
	workers                              Workers
	node                                 NodeVolumes
	*localPods
	*evictions
	*volumeStats
}

// GetHealth reports whether the dispatcher works.
func (p *podsync) GetHealth(context.Context, *podsyncv1.GetHealthRequest) (*podsyncv1.GetHealthResponse, error) {
	return &podsyncv1.GetHealthResponse{Turns: p.pulse.Turns(), IdleMilliseconds: p.pulse.Idle().Milliseconds()}, nil
}

// GetNodeVolumes answers nodestatus, which does not take it from the bus.
func (p *podsync) GetNodeVolumes(
	context.Context, *podsyncv1.GetNodeVolumesRequest,
) (*podsyncv1.GetNodeVolumesResponse, error) {
	inUse, drivers := p.node.NodeVolumes()
	return &podsyncv1.GetNodeVolumesResponse{Volumes: inUse, CsiDrivers: drivers}, nil
}

// WakePod is a hint of a pleg that serves no stream of hints, when the bus is away.
func (p *podsync) WakePod(_ context.Context, r *podsyncv1.WakePodRequest) (*podsyncv1.WakePodResponse, error) {
	if r.GetPodUid() == "" {
		p.workers.WakeAll("pleg")
	} else {
		p.workers.Wake(types.UID(r.GetPodUid()), "pleg")
	}
	return &podsyncv1.WakePodResponse{}, nil
}
