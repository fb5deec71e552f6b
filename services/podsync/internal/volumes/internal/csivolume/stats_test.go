package csivolume

import (
	"math"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/protobuf/proto"
)

// FuzzUsage has a driver answer any bytes. What it counts is never more than it can count.
func FuzzUsage(f *testing.F) {
	for _, list := range [][]*csi.VolumeUsage{
		nil,
		{{Unit: csi.VolumeUsage_BYTES, Total: 10, Available: 7, Used: 3}, {Unit: csi.VolumeUsage_INODES, Total: -1}},
		{{Unit: csi.VolumeUsage_BYTES, Total: math.MinInt64, Available: math.MaxInt64, Used: -1}, {Unit: 99, Total: 5}},
	} {
		text, err := proto.Marshal(&csi.NodeGetVolumeStatsResponse{Usage: list})
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, answer []byte) {
		r := &csi.NodeGetVolumeStatsResponse{}
		if proto.Unmarshal(answer, r) != nil {
			return // the caller gets an error, and no answer
		}
		u := usage(r.GetUsage())
		for _, n := range []uint64{u.Capacity, u.Available, u.Used, u.Inodes, u.InodesFree, u.InodesUsed} {
			if n > math.MaxInt64 {
				t.Errorf("%v makes %+v", r, u)
			}
		}
	})
}
