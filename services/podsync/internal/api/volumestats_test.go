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
	"github.com/microlet/microlet/services/podsync/internal/volumes"
)

// measured says how full a volume is, or fails.
type measured struct{ err error }

func (v measured) Usage(_ context.Context, pod types.UID, name string) (volumes.Usage, error) {
	if pod != "u" || name != "data" {
		return volumes.Usage{}, fmt.Errorf("asked for %s of %s", name, pod)
	}
	return volumes.Usage{Capacity: 1, Available: 2, Used: 3, Inodes: 4, InodesFree: 5, InodesUsed: 6}, v.err
}

func TestVolumeStats(t *testing.T) {
	r := &podsyncv1.GetVolumeStatsRequest{PodUid: "u", Volume: "data"}
	got, err := (&volumeStats{volumes: measured{}}).GetVolumeStats(t.Context(), r)
	if err != nil || got.GetCapacityBytes() != 1 || got.GetAvailableBytes() != 2 || got.GetUsedBytes() != 3 ||
		got.GetInodes() != 4 || got.GetInodesFree() != 5 || got.GetInodesUsed() != 6 {
		t.Errorf("%v, %v", got, err)
	}
	for cause, want := range map[error]codes.Code{
		volumes.ErrNoVolume:    codes.NotFound,
		volumes.ErrNotMeasured: codes.Unimplemented,
		errors.New("boom"):     codes.Internal,
	} {
		_, err := (&volumeStats{volumes: measured{fmt.Errorf("because: %w", cause)}}).GetVolumeStats(t.Context(), r)
		if status.Code(err) != want {
			t.Errorf("%v is %v, want %s", cause, err, want)
		}
	}
}
