package api

import (
	"context"
	"errors"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/types"

	podsyncv1 "github.com/microlet/microlet/proto/microlet/podsync/v1"
	"github.com/microlet/microlet/services/podsync/internal/volumes"
)

// Volumes know how full they are; see volumes.Manager.
type Volumes interface {
	Usage(ctx context.Context, pod types.UID, name string) (volumes.Usage, error)
}

// volumeStats answers stats.
type volumeStats struct {
	podsyncv1.UnimplementedVolumeStatsServiceServer
	volumes Volumes
}

// GetVolumeStats asks the driver or the file system of a volume.
func (v *volumeStats) GetVolumeStats(ctx context.Context, r *podsyncv1.GetVolumeStatsRequest) (
	*podsyncv1.GetVolumeStatsResponse, error) {
	u, err := v.volumes.Usage(ctx, types.UID(r.GetPodUid()), r.GetVolume())
	switch {
	case errors.Is(err, volumes.ErrNoVolume):
		return nil, status.Error(codes.NotFound, err.Error())
	case errors.Is(err, volumes.ErrNotMeasured):
		return nil, status.Error(codes.Unimplemented, err.Error())
	case err != nil:
		return nil, status.Error(codes.Internal, err.Error())
	}
	return &podsyncv1.GetVolumeStatsResponse{
		CapacityBytes: u.Capacity, AvailableBytes: u.Available, UsedBytes: u.Used,
		Inodes: u.Inodes, InodesFree: u.InodesFree, InodesUsed: u.InodesUsed,
	}, nil
}
