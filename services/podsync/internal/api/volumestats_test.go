package api

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/types"

	podsyncv1 "github.com/microlet/microlet/proto/microlet/podsync/v1"
	"github.com/microlet/microlet/services/podsync/internal/csivolume"
	"github.com/microlet/microlet/services/podsync/internal/volume"
)

// volumes say how full one is, or fail.
type volumes struct{ err error }

func (v volumes) Usage(_ context.Context, pod types.UID, name string) (csivolume.Usage, error) {
	if pod != "u" || name != "data" {
		return csivolume.Usage{}, fmt.Errorf("asked for %s of %s", name, pod)
	}
	return csivolume.Usage{Capacity: 1, Available: 2, Used: 3, Inodes: 4, InodesFree: 5, InodesUsed: 6}, v.err
}

func TestVolumeStats(t *testing.T) {
	r := &podsyncv1.GetVolumeStatsRequest{PodUid: "u", Volume: "data"}
	got, err := (&server{volumes: volumes{}}).GetVolumeStats(t.Context(), r)
	if err != nil || got.GetCapacityBytes() != 1 || got.GetAvailableBytes() != 2 || got.GetUsedBytes() != 3 ||
		got.GetInodes() != 4 || got.GetInodesFree() != 5 || got.GetInodesUsed() != 6 {
		t.Errorf("%v, %v", got, err)
	}
	for cause, want := range map[error]codes.Code{
		volume.ErrNoVolume:       codes.NotFound,
		csivolume.ErrNotMeasured: codes.Unimplemented,
		errors.New("boom"):       codes.Internal,
	} {
		_, err := (&server{volumes: volumes{fmt.Errorf("told: %w", cause)}}).GetVolumeStats(t.Context(), r)
		if status.Code(err) != want {
			t.Errorf("%v is %v, want %s", cause, err, want)
		}
	}
}
