package observe

import (
	"context"
	"errors"
	"log/slog"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	podsyncv1 "github.com/microlet/microlet/proto/microlet/podsync/v1"
)

// volumesServer answers for podsync.
type volumesServer struct {
	answer VolumeEntries
	err    error
	asked  int
}

func (s *volumesServer) GetNodeVolumes(context.Context, *podsyncv1.GetNodeVolumesRequest,
	...grpc.CallOption) (*podsyncv1.GetNodeVolumesResponse, error) {
	s.asked++
	if s.err != nil {
		return nil, s.err
	}
	return &podsyncv1.GetNodeVolumesResponse{Volumes: s.answer.Volumes, CsiDrivers: s.answer.CSIDrivers}, nil
}

func inUse(names ...string) VolumeEntries {
	return VolumeEntries{Volumes: &podsyncv1.Volumes{InUse: names}}
}

func drivers(topology string) VolumeEntries {
	return VolumeEntries{CSIDrivers: &podsyncv1.CSIDrivers{Drivers: []*podsyncv1.CSIDrivers_Driver{
		{Name: "d", NodeId: "n", Topology: map[string]string{"zone": topology}}}}}
}

func TestNodeVolumesAreThoseOfPodsync(t *testing.T) {
	unimplemented := status.Error(codes.Unimplemented, "unknown method")
	away := errors.New("connection refused")
	for name, steps := range map[string][]struct {
		bus, podsync VolumeEntries
		err          error
		want         VolumeEntries
		asked        int
	}{
		"podsync's entries": {
			{bus: inUse("a"), podsync: inUse("a"), want: inUse("a"), asked: 1},
			{bus: inUse("a"), podsync: inUse("a"), want: inUse("a"), asked: 1},
			{bus: inUse("b"), podsync: inUse("b"), want: inUse("b"), asked: 2},
		},
		"a list without a volume that is in use": {
			{bus: inUse(), podsync: inUse("a"), want: inUse("a"), asked: 1},
			{bus: inUse(), podsync: inUse("a"), want: inUse("a"), asked: 2},
		},
		"a label that no driver reports": {
			{bus: drivers("gold"), podsync: drivers("a"), want: drivers("a"), asked: 1},
		},
		"an entry that is gone from the bus": {
			{bus: inUse("a"), podsync: inUse("a"), want: inUse("a"), asked: 1},
			{podsync: inUse("a"), want: inUse("a"), asked: 2},
		},
		"podsync is away": {
			{bus: inUse("a"), err: away, asked: 1},
			{bus: inUse("a"), podsync: inUse("a"), want: inUse("a"), asked: 2},
			{bus: inUse("b"), err: away, want: inUse("a"), asked: 3},
		},
		"podsync has restarted, and does not know yet": {
			{bus: inUse("a"), podsync: inUse("a"), want: inUse("a"), asked: 1},
			{bus: VolumeEntries{}, podsync: VolumeEntries{}, want: VolumeEntries{}, asked: 2},
		},
		"podsync of an earlier version": {
			{bus: inUse("a"), err: unimplemented, want: inUse("a"), asked: 1},
			{bus: inUse("b"), err: unimplemented, want: inUse("b"), asked: 2},
		},
	} {
		t.Run(name, func(t *testing.T) {
			server := &volumesServer{}
			var bus VolumeEntries
			v := &NodeVolumes{
				Entries: func() VolumeEntries { return bus }, Client: server, Log: slog.New(slog.DiscardHandler),
			}
			for i, s := range steps {
				bus, server.answer, server.err = s.bus, s.podsync, s.err
				got := v.Get(t.Context())
				if !proto.Equal(got.Volumes, s.want.Volumes) || !proto.Equal(got.CSIDrivers, s.want.CSIDrivers) {
					t.Errorf("step %d: %v, want %v", i, got, s.want)
				}
				if server.asked != s.asked {
					t.Errorf("step %d: podsync was asked %d times, want %d", i, server.asked, s.asked)
				}
			}
		})
	}
}
