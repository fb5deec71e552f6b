package main

import (
	"context"
	"syscall"

	"github.com/container-storage-interface/spec/lib/go/csi"
)

// NodeGetVolumeStats returns how large a device is, and how full the file system is of any other volume.
func (n *node) NodeGetVolumeStats(_ context.Context, r *csi.NodeGetVolumeStatsRequest) (
	*csi.NodeGetVolumeStatsResponse, error,
) {
	is, err := n.at(r.GetVolumeId(), r.GetVolumePath())
	if err != nil {
		return nil, err
	}
	if is.Kind == device {
		return &csi.NodeGetVolumeStatsResponse{Usage: []*csi.VolumeUsage{
			{Unit: csi.VolumeUsage_BYTES, Total: is.Capacity},
		}}, nil
	}
	var fs syscall.Statfs_t
	if err := syscall.Statfs(r.GetVolumePath(), &fs); err != nil {
		return nil, internal(err)
	}
	block := fs.Bsize
	return &csi.NodeGetVolumeStatsResponse{Usage: []*csi.VolumeUsage{
		{
			Unit: csi.VolumeUsage_BYTES, Total: int64(fs.Blocks) * block, Available: int64(fs.Bavail) * block,
			Used: int64(fs.Blocks-fs.Bfree) * block,
		},
		{
			Unit: csi.VolumeUsage_INODES, Total: int64(fs.Files), Available: int64(fs.Ffree),
			Used: int64(fs.Files - fs.Ffree),
		},
	}}, nil
}
