package main

import (
	"context"
	"errors"
	"io/fs"
	"slices"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

type controller struct {
	csi.UnimplementedControllerServer
	driver
}

func (c controller) ControllerGetCapabilities(context.Context, *csi.ControllerGetCapabilitiesRequest) (
	*csi.ControllerGetCapabilitiesResponse, error,
) {
	answer := &csi.ControllerGetCapabilitiesResponse{}
	can := []csi.ControllerServiceCapability_RPC_Type{
		csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME,
		csi.ControllerServiceCapability_RPC_EXPAND_VOLUME,
	}
	if c.can.attach {
		can = append(can, csi.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME)
	}
	if c.can.modify {
		can = append(can, csi.ControllerServiceCapability_RPC_MODIFY_VOLUME)
	}
	for _, one := range can {
		rpc := &csi.ControllerServiceCapability_RPC{Type: one}
		answer.Capabilities = append(answer.Capabilities, &csi.ControllerServiceCapability{
			Type: &csi.ControllerServiceCapability_Rpc{Rpc: rpc},
		})
	}
	return answer, nil
}

func (c controller) CreateVolume(_ context.Context, r *csi.CreateVolumeRequest) (*csi.CreateVolumeResponse, error) {
	if r.GetName() == "" {
		return nil, status.Error(codes.InvalidArgument, "name is empty")
	}
	if err := checkAll(r.GetVolumeCapabilities()); err != nil {
		return nil, err
	}
	if r.GetVolumeContentSource() != nil {
		return nil, status.Error(codes.InvalidArgument, "volume_content_source: volumes begin empty")
	}
	if err := c.accept(r.GetMutableParameters()); err != nil {
		return nil, err
	}
	is, err := kindOf(r)
	if err != nil {
		return nil, err
	}
	id := idOf(r.GetName())
	least, most := r.GetCapacityRange().GetRequiredBytes(), r.GetCapacityRange().GetLimitBytes()
	if is != folder && least == 0 {
		least = leastSize
	}
	switch was, err := c.store.get(id); {
	case errors.Is(err, fs.ErrNotExist):
		if err := c.store.create(id, record{
			Name: r.GetName(), Capacity: least, Kind: is, Mutable: r.GetMutableParameters(),
		}); err != nil {
			return nil, status.Error(codes.Internal, err.Error())
		}
	case err != nil:
		return nil, status.Error(codes.Internal, err.Error())
	case was.Capacity < least || most > 0 && was.Capacity > most || was.Kind != is:
		return nil, status.Errorf(codes.AlreadyExists, "volume %q has %d bytes and is a %q", r.GetName(), was.Capacity,
			was.Kind)
	default:
		least = was.Capacity
	}
	return &csi.CreateVolumeResponse{Volume: &csi.Volume{
		VolumeId: id, CapacityBytes: least, VolumeContext: r.GetParameters(), AccessibleTopology: c.topologies(),
	}}, nil
}

func (c controller) DeleteVolume(_ context.Context, r *csi.DeleteVolumeRequest) (*csi.DeleteVolumeResponse, error) {
	if r.GetVolumeId() == "" {
		return nil, status.Error(codes.InvalidArgument, "volume_id is empty")
	}
	if c.can.keepInUse {
		paths, err := c.store.usedAt(r.GetVolumeId())
		if err != nil {
			return nil, internal(err)
		}
		if len(paths) > 0 {
			return nil, status.Errorf(codes.FailedPrecondition, "volume %q is still at %q", r.GetVolumeId(), paths)
		}
	}
	if err := c.store.remove(r.GetVolumeId()); err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	return &csi.DeleteVolumeResponse{}, nil
}

func (c controller) ControllerModifyVolume(_ context.Context, r *csi.ControllerModifyVolumeRequest) (
	*csi.ControllerModifyVolumeResponse, error,
) {
	if err := c.known(r.GetVolumeId()); err != nil {
		return nil, err
	}
	if err := c.accept(r.GetMutableParameters()); err != nil {
		return nil, err
	}
	is, err := c.store.get(r.GetVolumeId())
	if err != nil {
		return nil, internal(err)
	}
	is.Mutable = r.GetMutableParameters()
	if err := c.store.put(r.GetVolumeId(), is); err != nil {
		return nil, internal(err)
	}
	return &csi.ControllerModifyVolumeResponse{}, nil
}

// accept says which of the parameters may not be set or changed.
func (c controller) accept(mutable map[string]string) error {
	for name := range mutable {
		if !c.can.modify || !slices.Contains(c.can.mutable, name) {
			return status.Errorf(codes.InvalidArgument, "mutable_parameters: %q is not one of %q", name, c.can.mutable)
		}
	}
	return nil
}

// paramKind of a StorageClass says what its volumes are, unless they are folders or block volumes.
const paramKind = "kind"

// kindOf is what the volume is that is asked for.
func kindOf(r *csi.CreateVolumeRequest) (kind, error) {
	blocks := 0
	for _, c := range r.GetVolumeCapabilities() {
		if c.GetBlock() != nil {
			blocks++
		}
	}
	switch asked := r.GetParameters()[paramKind]; {
	case blocks == len(r.GetVolumeCapabilities()):
		return device, nil
	case blocks > 0:
		return folder, status.Error(codes.InvalidArgument, "volume_capabilities: a volume is mounted or a block device")
	case asked == string(folder) || asked == string(memory):
		return kind(asked), nil
	default:
		return folder, status.Errorf(codes.InvalidArgument, "parameters: %s is %q: it must be %s", paramKind, asked, memory)
	}
}

// attachedAs is what a controller passes to the node about an attached volume.
const attachedAs = "attached"

func (c controller) ControllerPublishVolume(_ context.Context, r *csi.ControllerPublishVolumeRequest) (
	*csi.ControllerPublishVolumeResponse, error,
) {
	if r.GetVolumeId() == "" || r.GetNodeId() == "" {
		return nil, status.Error(codes.InvalidArgument, "volume_id or node_id is empty")
	}
	if err := check(r.GetVolumeCapability()); err != nil {
		return nil, err
	}
	if err := c.known(r.GetVolumeId()); err != nil {
		return nil, err
	}
	if r.GetNodeId() != c.node {
		return nil, status.Errorf(codes.NotFound, "node %q does not exist: there is %q", r.GetNodeId(), c.node)
	}
	if err := c.store.attach(r.GetVolumeId()); err != nil {
		return nil, internal(err)
	}
	return &csi.ControllerPublishVolumeResponse{PublishContext: map[string]string{attachedAs: r.GetVolumeId()}}, nil
}

func (c controller) ControllerUnpublishVolume(_ context.Context, r *csi.ControllerUnpublishVolumeRequest) (
	*csi.ControllerUnpublishVolumeResponse, error,
) {
	if r.GetVolumeId() == "" {
		return nil, status.Error(codes.InvalidArgument, "volume_id is empty")
	}
	if err := c.store.detach(r.GetVolumeId()); err != nil {
		return nil, internal(err)
	}
	return &csi.ControllerUnpublishVolumeResponse{}, nil
}

func (c controller) ValidateVolumeCapabilities(_ context.Context, r *csi.ValidateVolumeCapabilitiesRequest) (
	*csi.ValidateVolumeCapabilitiesResponse, error,
) {
	if err := c.known(r.GetVolumeId()); err != nil {
		return nil, err
	}
	if len(r.GetVolumeCapabilities()) == 0 {
		return nil, status.Error(codes.InvalidArgument, "volume_capabilities is empty")
	}
	if err := checkAll(r.GetVolumeCapabilities()); err != nil {
		return &csi.ValidateVolumeCapabilitiesResponse{Message: status.Convert(err).Message()}, nil
	}
	return &csi.ValidateVolumeCapabilitiesResponse{
		Confirmed: &csi.ValidateVolumeCapabilitiesResponse_Confirmed{
			VolumeContext: r.GetVolumeContext(), VolumeCapabilities: r.GetVolumeCapabilities(),
			Parameters: r.GetParameters(),
		},
	}, nil
}

// known says why a volume cannot be used.
func (d driver) known(id string) error {
	if id == "" {
		return status.Error(codes.InvalidArgument, "volume_id is empty")
	}
	switch _, err := d.store.get(id); {
	case errors.Is(err, fs.ErrNotExist):
		return status.Errorf(codes.NotFound, "volume %q does not exist", id)
	case err != nil:
		return status.Error(codes.Internal, err.Error())
	}
	return nil
}

func checkAll(capabilities []*csi.VolumeCapability) error {
	if len(capabilities) == 0 {
		return status.Error(codes.InvalidArgument, "volume_capabilities is empty")
	}
	for _, c := range capabilities {
		if err := check(c); err != nil {
			return err
		}
	}
	return nil
}

// check says why a volume cannot be used as asked for: one node writes it.
func check(c *csi.VolumeCapability) error {
	if c == nil {
		return status.Error(codes.InvalidArgument, "volume_capability is empty")
	}
	if c.GetMount() == nil && c.GetBlock() == nil {
		return status.Error(codes.InvalidArgument, "volume_capability: access_type is empty")
	}
	switch c.GetAccessMode().GetMode() {
	case csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER, csi.VolumeCapability_AccessMode_SINGLE_NODE_READER_ONLY,
		csi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY:
		return nil
	default:
		return status.Errorf(codes.InvalidArgument, "volume_capability: access_mode %s: several nodes would write",
			c.GetAccessMode().GetMode())
	}
}
