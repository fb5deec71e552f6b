// Package server answers the callers of imagegc over gRPC.
package server

import (
	"context"
	"errors"
	"math"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	imagegcv1 "github.com/microlet/microlet/proto/microlet/imagegc/v1"
	"github.com/microlet/microlet/services/imagegc/internal/collector"
	"github.com/microlet/microlet/services/imagegc/internal/podimages"
)

// Collector removes images.
type Collector interface {
	DeleteUnused(ctx context.Context) (collector.Removed, error)
}

// Server implements the gRPC service.
type Server struct {
	imagegcv1.UnimplementedImageGCServiceServer

	collector Collector
}

// New returns a server.
func New(c Collector) *Server { return &Server{collector: c} }

// DeleteUnusedImages implements the gRPC service.
func (s *Server) DeleteUnusedImages(ctx context.Context, _ *imagegcv1.DeleteUnusedImagesRequest) (
	*imagegcv1.DeleteUnusedImagesResponse, error,
) {
	removed, err := s.collector.DeleteUnused(ctx)
	switch {
	case errors.Is(err, podimages.ErrUnknown):
		return nil, status.Error(codes.Unavailable, err.Error())
	case ctx.Err() != nil:
		return nil, status.FromContextError(ctx.Err()).Err()
	case err != nil:
		return nil, status.Error(codes.Internal, err.Error())
	}
	return &imagegcv1.DeleteUnusedImagesResponse{
		BytesFreed: removed.Bytes, ImagesRemoved: int32(min(removed.Images, math.MaxInt32)),
	}, nil
}
