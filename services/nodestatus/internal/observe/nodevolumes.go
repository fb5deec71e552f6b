package observe

import (
	"context"
	"fmt"
	"log/slog"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	podsyncv1 "github.com/microlet/microlet/proto/microlet/podsync/v1"
	"github.com/microlet/microlet/services/internal/logkey"
)

// NodeVolumesClient is podsync's own socket, as far as NodeVolumes needs it.
type NodeVolumesClient interface {
	GetNodeVolumes(ctx context.Context, in *podsyncv1.GetNodeVolumesRequest,
		opts ...grpc.CallOption) (*podsyncv1.GetNodeVolumesResponse, error)
}

var _ NodeVolumesClient = (podsyncv1.PodsyncServiceClient)(nil)

// VolumeEntries are podsync's entries on the bus; nil is none.
type VolumeEntries struct {
	Volumes    *podsyncv1.Volumes
	CSIDrivers *podsyncv1.CSIDrivers
}

// NodeVolumes knows what the Node is to show of volumes: those in use, and what CSI drivers say of the node.
//
// The entries on the bus only say when to ask podsync. Otherwise, an attacker who controls the bus could add labels to
// the Node, and have volumes detached that are mounted. The entries of an earlier version of podsync, which does not
// answer, are believed.
type NodeVolumes struct {
	// Entries returns those on the bus.
	Entries func() VolumeEntries
	Client  NodeVolumesClient
	Log     *slog.Logger

	mu       sync.Mutex
	known    VolumeEntries
	answered bool
	failed   bool
}

// Get returns what podsync says now, or what it said last if it does not answer within 2 s. Before its first answer
// there is nothing.
func (v *NodeVolumes) Get(ctx context.Context) VolumeEntries {
	v.mu.Lock()
	defer v.mu.Unlock()
	entries := v.Entries()
	if v.answered && proto.Equal(entries.Volumes, v.known.Volumes) &&
		proto.Equal(entries.CSIDrivers, v.known.CSIDrivers) {
		return v.known
	}
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	answer, err := v.Client.GetNodeVolumes(ctx, &podsyncv1.GetNodeVolumesRequest{})
	if status.Code(err) == codes.Unimplemented {
		v.answered, v.failed = false, false
		return entries
	}
	if err != nil {
		v.logOnce(fmt.Errorf("ask podsync for volumes and CSI drivers: %w", err))
		return v.known
	}
	v.known, v.answered, v.failed = VolumeEntries{answer.GetVolumes(), answer.GetCsiDrivers()}, true, false
	return v.known
}

// logOnce logs the first of several failures in a row.
func (v *NodeVolumes) logOnce(err error) {
	if !v.failed {
		v.Log.Warn("the Node shows the volumes and CSI drivers that podsync reported last", logkey.Err, err)
	}
	v.failed = true
}
