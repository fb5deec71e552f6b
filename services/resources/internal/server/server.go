// Package server answers podsync and operators over gRPC.
package server

import (
	"context"
	"errors"
	"path/filepath"
	"slices"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	resourcesv1 "github.com/microlet/microlet/proto/microlet/resources/v1"
	"github.com/microlet/microlet/services/resources/internal/devices"
)

// Devices grants devices; see devices.Manager.
type Devices interface {
	Register(ctx context.Context, resource, endpoint string, versions []string) error
	Deregister(resource, endpoint string)
	Allocate(ctx context.Context, pod *v1.Pod, placed devices.Placed, running bool) (
		*resourcesv1.AllocateResponse, error)
	Prepare(ctx context.Context, uid types.UID, container string) error
	Plugins() []*resourcesv1.ListPluginsResponse_Plugin
}

// Server implements the gRPC service.
type Server struct {
	resourcesv1.UnimplementedResourcesServiceServer

	devices Devices
	asked   func(types.UID)
}

// New returns a server. asked is called with the UID of each pod for which a grant is asked, before it is.
func New(d Devices, asked func(types.UID)) *Server { return &Server{devices: d, asked: asked} }

// Allocate implements the gRPC service.
func (s *Server) Allocate(ctx context.Context, r *resourcesv1.AllocateRequest) (*resourcesv1.AllocateResponse, error) {
	pod := &v1.Pod{}
	if err := pod.Unmarshal(r.GetPod()); err != nil {
		return nil, status.Errorf(codes.InvalidArgument, "pod is no Pod in its protobuf encoding: %v", err)
	}
	if pod.UID == "" {
		return nil, status.Error(codes.InvalidArgument, "pod has no metadata.uid: give the pod as it was admitted")
	}
	placed := devices.Placed{UIDs: make([]types.UID, 0, len(r.GetPlacedPodUids()))}
	for _, uid := range r.GetPlacedPodUids() {
		placed.UIDs = append(placed.UIDs, types.UID(uid))
	}
	if at := r.GetPlacedAt(); at != nil {
		if err := at.CheckValid(); err != nil {
			return nil, status.Errorf(codes.InvalidArgument, "placed_at is no time: %v", err)
		}
		placed.At = at.AsTime()
	}
	s.asked(pod.UID)
	answer, err := s.devices.Allocate(ctx, pod, placed, r.GetRunning())
	if err != nil {
		return nil, answerOf(ctx, err)
	}
	return answer, nil
}

// PrepareContainer implements the gRPC service.
func (s *Server) PrepareContainer(ctx context.Context,
	r *resourcesv1.PrepareContainerRequest) (*resourcesv1.PrepareContainerResponse, error) {
	if err := required("pod_uid", r.GetPodUid(), "container", r.GetContainer()); err != nil {
		return nil, err
	}
	if err := s.devices.Prepare(ctx, types.UID(r.GetPodUid()), r.GetContainer()); err != nil {
		return nil, answerOf(ctx, err)
	}
	return &resourcesv1.PrepareContainerResponse{}, nil
}

// RegisterPlugin implements the gRPC service.
func (s *Server) RegisterPlugin(ctx context.Context,
	r *resourcesv1.RegisterPluginRequest) (*resourcesv1.RegisterPluginResponse, error) {
	if err := checkPlugin(r.GetResource(), r.GetEndpoint()); err != nil {
		return nil, err
	}
	if err := s.devices.Register(ctx, r.GetResource(), r.GetEndpoint(), r.GetVersions()); err != nil {
		return nil, answerOf(ctx, err)
	}
	return &resourcesv1.RegisterPluginResponse{}, nil
}

// DeregisterPlugin implements the gRPC service.
func (s *Server) DeregisterPlugin(_ context.Context,
	r *resourcesv1.DeregisterPluginRequest) (*resourcesv1.DeregisterPluginResponse, error) {
	if err := checkPlugin(r.GetResource(), r.GetEndpoint()); err != nil {
		return nil, err
	}
	s.devices.Deregister(r.GetResource(), r.GetEndpoint())
	return &resourcesv1.DeregisterPluginResponse{}, nil
}

// ListPlugins implements the gRPC service.
func (s *Server) ListPlugins(context.Context, *resourcesv1.ListPluginsRequest) (*resourcesv1.ListPluginsResponse,
	error) {
	return &resourcesv1.ListPluginsResponse{Plugins: s.devices.Plugins()}, nil
}

// checkPlugin says what is wrong with the name of a plugin.
func checkPlugin(resource, endpoint string) error {
	if err := required("resource", resource, "endpoint", endpoint); err != nil {
		return err
	}
	if !filepath.IsAbs(endpoint) {
		return status.Errorf(codes.InvalidArgument, "endpoint is %q: give the absolute path of a socket", endpoint)
	}
	return nil
}

// required says which of the fields, given as name and value, is empty.
func required(fields ...string) error {
	for pair := range slices.Chunk(fields, 2) {
		if pair[len(pair)-1] == "" {
			return status.Errorf(codes.InvalidArgument, "%s is empty: it must be set", pair[0])
		}
	}
	return nil
}

// answerOf is an error as the caller gets it. Plugins' own errors keep their words, and not their codes: one from a
// plugin must not look like one of this server.
func answerOf(ctx context.Context, err error) error {
	switch {
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return status.Error(codes.DeadlineExceeded, err.Error())
	case ctx.Err() != nil:
		return status.Error(codes.Canceled, err.Error())
	}
	return status.Error(codes.Internal, err.Error())
}
