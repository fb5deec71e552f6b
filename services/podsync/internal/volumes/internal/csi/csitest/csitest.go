// Package csitest serves a CSI driver's node service for tests, which holds its callers to the contract.
//
// It mounts nothing: what it stages and publishes is in its memory.
package csitest

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// Driver is a driver with a socket.
type Driver struct {
	csi.UnimplementedNodeServer
	// Socket is where it serves.
	Socket string

	mu           sync.Mutex
	capabilities []csi.NodeServiceCapability_RPC_Type
	before       func(ctx context.Context, method string) error
	calls        []string
	breaches     []string
	requests     []proto.Message
	staged       map[string]string          // by volume
	published    map[string]map[string]bool // targets by volume
	usage        []*csi.VolumeUsage
}

// Start serves a driver with these capabilities until the test ends, and reports what breaks the contract.
func Start(t *testing.T, capabilities ...csi.NodeServiceCapability_RPC_Type) *Driver {
	t.Helper()
	dir, err := os.MkdirTemp("", "csi") // a socket's path is short
	if err != nil {
		t.Fatal(err)
	}
	d := &Driver{
		Socket: filepath.Join(dir, "csi.sock"), capabilities: capabilities,
		staged: map[string]string{}, published: map[string]map[string]bool{},
	}
	listener, err := net.Listen("unix", d.Socket)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer(grpc.UnaryInterceptor(d.note))
	csi.RegisterNodeServer(server, d)
	done := make(chan error, 1)
	go func() { done <- server.Serve(listener) }()
	t.Cleanup(func() {
		server.Stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
		for _, breach := range d.breaches {
			t.Error(breach)
		}
	})
	return d
}

// Before has f called before each call. Its error is the call's answer.
func (d *Driver) Before(f func(ctx context.Context, method string) error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.before = f
}

// Calls are the calls that were not answered with an error: each a method and a volume, without those that only ask.
func (d *Driver) Calls() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return append([]string(nil), d.calls...)
}

// Last returns the last request of a type.
func Last[R proto.Message](t *testing.T, d *Driver) R {
	t.Helper()
	d.mu.Lock()
	defer d.mu.Unlock()
	for i := len(d.requests) - 1; i >= 0; i-- {
		if r, ok := d.requests[i].(R); ok {
			return r
		}
	}
	t.Fatalf("no request of type %T came", *new(R))
	panic("unreachable")
}

// Left returns what is staged or published.
func (d *Driver) Left() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	var left []string
	for volume := range d.staged {
		left = append(left, "staged "+volume)
	}
	for volume, targets := range d.published {
		for target := range targets {
			left = append(left, "published "+volume+" at "+target)
		}
	}
	return left
}

func (d *Driver) note(ctx context.Context, request any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any,
	error) {
	method := info.FullMethod[strings.LastIndex(info.FullMethod, "/")+1:]
	d.mu.Lock()
	before := d.before
	d.requests = append(d.requests, request.(proto.Message))
	d.mu.Unlock()
	if before != nil {
		if err := before(ctx, method); err != nil {
			return nil, err
		}
	}
	answer, err := handle(ctx, request)
	d.mu.Lock()
	defer d.mu.Unlock()
	if v, ok := request.(interface{ GetVolumeId() string }); ok && err == nil {
		d.calls = append(d.calls, method+" "+v.GetVolumeId())
	}
	return answer, err
}

// breach notes that a caller broke the contract.
func (d *Driver) breach(format string, args ...any) error {
	text := fmt.Sprintf(format, args...)
	d.breaches = append(d.breaches, text)
	return status.Error(codes.FailedPrecondition, text)
}

func (d *Driver) stages() bool {
	for _, c := range d.capabilities {
		if c == csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME {
			return true
		}
	}
	return false
}

// NodeGetInfo names the node.
func (d *Driver) NodeGetInfo(context.Context, *csi.NodeGetInfoRequest) (*csi.NodeGetInfoResponse, error) {
	return &csi.NodeGetInfoResponse{NodeId: "node-1", MaxVolumesPerNode: 7}, nil
}

// NodeGetCapabilities names those that Start was given.
func (d *Driver) NodeGetCapabilities(context.Context, *csi.NodeGetCapabilitiesRequest) (
	*csi.NodeGetCapabilitiesResponse, error) {
	r := &csi.NodeGetCapabilitiesResponse{}
	for _, c := range d.capabilities {
		r.Capabilities = append(r.Capabilities, &csi.NodeServiceCapability{Type: &csi.NodeServiceCapability_Rpc{
			Rpc: &csi.NodeServiceCapability_RPC{Type: c}}})
	}
	return r, nil
}

// NodeStageVolume wants a folder to stage in.
func (d *Driver) NodeStageVolume(_ context.Context, r *csi.NodeStageVolumeRequest) (*csi.NodeStageVolumeResponse,
	error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.stages() {
		return nil, d.breach("%s is staged by a driver that stages nothing", r.VolumeId)
	}
	if info, err := os.Stat(r.StagingTargetPath); err != nil || !info.IsDir() {
		return nil, d.breach("%s is staged where no folder is: %v", r.VolumeId, err)
	}
	if at, ok := d.staged[r.VolumeId]; ok && at != r.StagingTargetPath {
		return nil, d.breach("%s is staged at %s and at %s", r.VolumeId, at, r.StagingTargetPath)
	}
	d.staged[r.VolumeId] = r.StagingTargetPath
	return &csi.NodeStageVolumeResponse{}, nil
}

// NodePublishVolume wants the volume staged, and the folder of the target.
func (d *Driver) NodePublishVolume(_ context.Context, r *csi.NodePublishVolumeRequest) (
	*csi.NodePublishVolumeResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	inline := r.VolumeContext["csi.storage.k8s.io/ephemeral"] == "true"
	if d.stages() && !inline && (d.staged[r.VolumeId] == "" || d.staged[r.VolumeId] != r.StagingTargetPath) {
		return nil, d.breach("%s is published from %q while it is staged at %q", r.VolumeId, r.StagingTargetPath,
			d.staged[r.VolumeId])
	}
	if info, err := os.Stat(filepath.Dir(r.TargetPath)); err != nil || !info.IsDir() {
		return nil, d.breach("%s is published where no folder is: %v", r.VolumeId, err)
	}
	if d.published[r.VolumeId] == nil {
		d.published[r.VolumeId] = map[string]bool{}
	}
	d.published[r.VolumeId][r.TargetPath] = true
	return &csi.NodePublishVolumeResponse{}, os.MkdirAll(r.TargetPath, 0o750)
}

// NodeUnpublishVolume succeeds for what is not published.
func (d *Driver) NodeUnpublishVolume(_ context.Context, r *csi.NodeUnpublishVolumeRequest) (
	*csi.NodeUnpublishVolumeResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if delete(d.published[r.VolumeId], r.TargetPath); len(d.published[r.VolumeId]) == 0 {
		delete(d.published, r.VolumeId)
	}
	return &csi.NodeUnpublishVolumeResponse{}, os.RemoveAll(r.TargetPath)
}

// NodeExpandVolume wants the volume published at its path, and staged where it is said to be.
func (d *Driver) NodeExpandVolume(_ context.Context, r *csi.NodeExpandVolumeRequest) (*csi.NodeExpandVolumeResponse,
	error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.published[r.VolumeId][r.VolumePath] || d.staged[r.VolumeId] != r.StagingTargetPath {
		return nil, d.breach("%s is expanded at %s, staged at %q, while it is published at %v, staged at %q", r.VolumeId,
			r.VolumePath, r.StagingTargetPath, d.published[r.VolumeId], d.staged[r.VolumeId])
	}
	return &csi.NodeExpandVolumeResponse{CapacityBytes: r.GetCapacityRange().GetRequiredBytes()}, nil
}

// Measured sets what NodeGetVolumeStats answers.
func (d *Driver) Measured(usage ...*csi.VolumeUsage) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.usage = usage
}

// NodeGetVolumeStats wants the volume published at its path.
func (d *Driver) NodeGetVolumeStats(_ context.Context, r *csi.NodeGetVolumeStatsRequest) (
	*csi.NodeGetVolumeStatsResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.published[r.VolumeId][r.VolumePath] {
		return nil, status.Errorf(codes.NotFound, "%s is not published at %s", r.VolumeId, r.VolumePath)
	}
	return &csi.NodeGetVolumeStatsResponse{Usage: d.usage}, nil
}

// NodeUnstageVolume wants the volume published nowhere.
func (d *Driver) NodeUnstageVolume(_ context.Context, r *csi.NodeUnstageVolumeRequest) (
	*csi.NodeUnstageVolumeResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.published[r.VolumeId]) > 0 {
		return nil, d.breach("%s is unstaged while it is published", r.VolumeId)
	}
	delete(d.staged, r.VolumeId)
	return &csi.NodeUnstageVolumeResponse{}, nil
}
