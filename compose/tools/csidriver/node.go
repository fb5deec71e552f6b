package main

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"strings"
	"sync"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/mount-utils"
)

type node struct {
	csi.UnimplementedNodeServer
	driver
	mounter mount.Interface
	// mu makes calls one by one: two that look whether something is mounted would both mount it.
	mu sync.Mutex
}

func (*node) NodeGetCapabilities(context.Context, *csi.NodeGetCapabilitiesRequest) (
	*csi.NodeGetCapabilitiesResponse, error,
) {
	answer := &csi.NodeGetCapabilitiesResponse{}
	for _, c := range []csi.NodeServiceCapability_RPC_Type{
		csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME, csi.NodeServiceCapability_RPC_EXPAND_VOLUME,
		csi.NodeServiceCapability_RPC_GET_VOLUME_STATS,
	} {
		rpc := &csi.NodeServiceCapability_RPC{Type: c}
		answer.Capabilities = append(answer.Capabilities, &csi.NodeServiceCapability{
			Type: &csi.NodeServiceCapability_Rpc{Rpc: rpc},
		})
	}
	return answer, nil
}

func (n *node) NodeGetInfo(context.Context, *csi.NodeGetInfoRequest) (*csi.NodeGetInfoResponse, error) {
	answer := &csi.NodeGetInfoResponse{NodeId: n.node, MaxVolumesPerNode: n.can.limit}
	if n.can.topology {
		answer.AccessibleTopology = n.topologies()[0]
	}
	return answer, nil
}

// topologies say that volumes are on this node, if the driver says where they are.
func (d driver) topologies() []*csi.Topology {
	if !d.can.topology {
		return nil
	}
	return []*csi.Topology{{Segments: map[string]string{"topology." + d.name + "/node": d.node}}}
}

func (n *node) NodeStageVolume(_ context.Context, r *csi.NodeStageVolumeRequest) (
	*csi.NodeStageVolumeResponse, error,
) {
	err := n.bind(bind{
		id: r.GetVolumeId(), field: "staging_target_path", target: r.GetStagingTargetPath(),
		capability: r.GetVolumeCapability(), source: n.store.files(r.GetVolumeId()),
		attached: func() bool {
			return !n.can.attach ||
				r.GetPublishContext()[attachedAs] == r.GetVolumeId() && n.store.isAttached(r.GetVolumeId())
		},
	})
	if err != nil {
		return nil, err
	}
	return &csi.NodeStageVolumeResponse{}, nil
}

func (n *node) NodePublishVolume(_ context.Context, r *csi.NodePublishVolumeRequest) (
	*csi.NodePublishVolumeResponse, error,
) {
	b := bind{
		id: r.GetVolumeId(), field: "target_path", target: r.GetTargetPath(), capability: r.GetVolumeCapability(),
		source: r.GetStagingTargetPath(), staged: true,
	}
	if r.GetReadonly() {
		b.options = []string{"ro"}
	}
	if r.GetVolumeContext()[ephemeral] == "true" {
		if !isInline(b.id) {
			return nil, status.Errorf(codes.InvalidArgument, "volume_id %q is not that of an inline volume", b.id)
		}
		if err := n.store.create(b.id, record{Name: b.id}); err != nil {
			return nil, internal(err)
		}
		b.source, b.staged = n.store.files(b.id), false
	}
	if err := n.bind(b); err != nil {
		return nil, err
	}
	return &csi.NodePublishVolumeResponse{}, nil
}

func (n *node) NodeUnpublishVolume(_ context.Context, r *csi.NodeUnpublishVolumeRequest) (
	*csi.NodeUnpublishVolumeResponse, error,
) {
	if err := n.release(r.GetVolumeId(), "target_path", r.GetTargetPath()); err != nil {
		return nil, err
	}
	// What was made by the publish is removed.
	if err := os.Remove(r.GetTargetPath()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, status.Error(codes.Internal, err.Error())
	}
	if isInline(r.GetVolumeId()) {
		if err := n.store.remove(r.GetVolumeId()); err != nil {
			return nil, internal(err)
		}
	}
	return &csi.NodeUnpublishVolumeResponse{}, nil
}

func (n *node) NodeUnstageVolume(_ context.Context, r *csi.NodeUnstageVolumeRequest) (
	*csi.NodeUnstageVolumeResponse, error,
) {
	if err := n.release(r.GetVolumeId(), "staging_target_path", r.GetStagingTargetPath()); err != nil {
		return nil, err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := n.store.disk(r.GetVolumeId()).detach(); err != nil {
		return nil, internal(err)
	}
	return &csi.NodeUnstageVolumeResponse{}, nil
}

// ephemeral is how a volume's context names an inline volume.
const ephemeral = "csi.storage.k8s.io/ephemeral"

func isInline(id string) bool { return validID.MatchString(id) && strings.HasPrefix(id, "csi-") }

// bind asks for a folder to be seen at another path.
type bind struct {
	id, source, target string
	// field is the name of the target's field.
	field      string
	capability *csi.VolumeCapability
	options    []string
	// attached, unless it is nil, reports whether the volume is attached to the node.
	attached func() bool
	// staged: the source must be a volume that is staged.
	staged bool
}

func (n *node) bind(b bind) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if b.id == "" {
		return status.Error(codes.InvalidArgument, "volume_id is empty")
	}
	if b.target == "" {
		return status.Errorf(codes.InvalidArgument, "%s is empty", b.field)
	}
	if err := check(b.capability); err != nil {
		return err
	}
	if err := n.known(b.id); err != nil {
		return err
	}
	if b.attached != nil && !b.attached() {
		return status.Errorf(codes.FailedPrecondition, "volume %q is not attached, or publish_context is another's", b.id)
	}
	is, err := n.store.get(b.id)
	if err != nil {
		return internal(err)
	}
	if block := b.capability.GetBlock() != nil; block != (is.Kind == device) {
		return status.Errorf(codes.InvalidArgument, "volume_capability: volume %q is a %q", b.id, is.Kind)
	}
	if is.Kind == device {
		return n.bindDevice(b)
	}
	if b.staged {
		if there, err := n.mounted(b.source); err != nil || !there {
			return status.Errorf(codes.FailedPrecondition, "nothing is staged at %q: %v", b.source, err)
		}
	}
	if there, err := n.mounted(b.target); err != nil || there {
		return internal(err)
	}
	if err := os.MkdirAll(b.target, 0o750); err != nil {
		return internal(err)
	}
	return internal(n.mounter.MountSensitiveWithoutSystemd(b.source, b.target, "", append(b.options, "bind"), nil))
}

// bindDevice attaches a block volume, or publishes it: then its device is seen at a file.
func (n *node) bindDevice(b bind) error {
	if !b.staged {
		_, err := n.store.disk(b.id).attach()
		return internal(err)
	}
	name, err := n.store.disk(b.id).attached()
	if err != nil {
		return status.Errorf(codes.FailedPrecondition, "volume %q is not staged: %v", b.id, err)
	}
	if there, err := n.mounted(b.target); err != nil || there {
		return internal(err)
	}
	f, err := os.OpenFile(b.target, os.O_CREATE, 0o600)
	if err != nil {
		return internal(err)
	}
	if err := f.Close(); err != nil {
		return internal(err)
	}
	return internal(n.mounter.MountSensitiveWithoutSystemd(name, b.target, "", append(b.options, "bind"), nil))
}

// at returns what the volume is that is mounted at a path.
func (n *node) at(id, path string) (record, error) {
	if path == "" {
		return record{}, status.Error(codes.InvalidArgument, "volume_path is empty")
	}
	if err := n.known(id); err != nil {
		return record{}, err
	}
	if there, err := n.mounted(path); err != nil || !there {
		return record{}, status.Errorf(codes.NotFound, "volume %q is not at %q: %v", id, path, err)
	}
	is, err := n.store.get(id)
	return is, internal(err)
}

// release unmounts a path, and does nothing if nothing is mounted there.
func (n *node) release(id, field, path string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if path == "" {
		return status.Errorf(codes.InvalidArgument, "%s is empty", field)
	}
	// The one volume that an inline volume's pod had is gone with its first unpublish.
	if err := n.known(id); err != nil && !isInline(id) {
		return err
	}
	there, err := n.mounted(path)
	if err != nil || !there {
		return internal(err)
	}
	return internal(n.mounter.Unmount(path))
}

func (n *node) mounted(path string) (bool, error) {
	there, err := n.mounter.IsMountPoint(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return there, err
}

func internal(err error) error {
	if err == nil {
		return nil
	}
	return status.Error(codes.Internal, err.Error())
}
