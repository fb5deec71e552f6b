package main

import (
	"context"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// ControllerExpandVolume notes the size, and makes a disk larger. The rest is the node's.
func (c controller) ControllerExpandVolume(_ context.Context, r *csi.ControllerExpandVolumeRequest) (
	*csi.ControllerExpandVolumeResponse, error,
) {
	if err := c.known(r.GetVolumeId()); err != nil {
		return nil, err
	}
	least, most := r.GetCapacityRange().GetRequiredBytes(), r.GetCapacityRange().GetLimitBytes()
	if r.GetCapacityRange() == nil || least < 0 || most < 0 {
		return nil, status.Error(codes.InvalidArgument, "capacity_range is missing or negative")
	}
	is, err := c.store.get(r.GetVolumeId())
	if err != nil {
		return nil, internal(err)
	}
	size := max(is.Capacity, least)
	if most > 0 && size > most {
		return nil, status.Errorf(codes.OutOfRange, "capacity_range: volume %q has %d bytes", r.GetVolumeId(), is.Capacity)
	}
	is.Capacity = size
	if is.Kind == device {
		err = c.store.disk(r.GetVolumeId()).make(size)
	}
	if err == nil {
		err = c.store.put(r.GetVolumeId(), is)
	}
	if err != nil {
		return nil, internal(err)
	}
	return &csi.ControllerExpandVolumeResponse{
		CapacityBytes: size, NodeExpansionRequired: is.Kind != folder || c.can.expand,
	}, nil
}

// NodeExpandVolume makes the device, or the file system, as large as the controller has noted.
func (n *node) NodeExpandVolume(_ context.Context, r *csi.NodeExpandVolumeRequest) (
	*csi.NodeExpandVolumeResponse, error,
) {
	n.mu.Lock()
	defer n.mu.Unlock()
	is, err := n.at(r.GetVolumeId(), r.GetVolumePath())
	if err != nil {
		return nil, err
	}
	if is.Kind == folder {
		return &csi.NodeExpandVolumeResponse{CapacityBytes: is.Capacity}, nil
	}
	if is.Kind == memory {
		err = mountMemory(n.mounter, n.store.folder(r.GetVolumeId()), is.Capacity)
	} else {
		err = n.store.disk(r.GetVolumeId()).refresh()
	}
	if err != nil {
		return nil, internal(err)
	}
	return &csi.NodeExpandVolumeResponse{CapacityBytes: is.Capacity}, nil
}
