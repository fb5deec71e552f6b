package csi

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/microlet/microlet/services/internal/pluginsocket"
)

const (
	// timeout bounds a call, as the kubelet's csiTimeout.
	timeout = 2 * time.Minute
	// maxAnswer bounds an answer, and what is beside it: the text of an error.
	maxAnswer = 1 << 20
	// maxText bounds what an error says. It becomes an Event's message.
	maxText = 4 << 10
)

// Driver calls one driver.
type Driver struct {
	name, endpoint string
	// folder is the one that the endpoint is below.
	folder  pluginsocket.Folder
	seconds *prometheus.HistogramVec
}

// Info asks what the node is called, how many volumes it may have, and where it is.
func (d *Driver) Info(ctx context.Context) (*csi.NodeGetInfoResponse, error) {
	return call(ctx, d, csi.NodeClient.NodeGetInfo, &csi.NodeGetInfoRequest{})
}

// Capabilities asks what the driver can do.
func (d *Driver) Capabilities(ctx context.Context) (Capabilities, error) {
	r, err := call(ctx, d, csi.NodeClient.NodeGetCapabilities, &csi.NodeGetCapabilitiesRequest{})
	if err != nil {
		return nil, err
	}
	can := Capabilities{}
	for _, c := range r.GetCapabilities() {
		can[c.GetRpc().GetType()] = true
	}
	return can, nil
}

// Stage makes a volume ready for all pods of the node.
func (d *Driver) Stage(ctx context.Context, r *csi.NodeStageVolumeRequest) error {
	_, err := call(ctx, d, csi.NodeClient.NodeStageVolume, r)
	return err
}

// Publish gives a volume to one pod.
func (d *Driver) Publish(ctx context.Context, r *csi.NodePublishVolumeRequest) error {
	_, err := call(ctx, d, csi.NodeClient.NodePublishVolume, r)
	return err
}

// Unpublish takes a volume from one pod.
func (d *Driver) Unpublish(ctx context.Context, volume, target string) error {
	_, err := call(ctx, d, csi.NodeClient.NodeUnpublishVolume,
		&csi.NodeUnpublishVolumeRequest{VolumeId: volume, TargetPath: target})
	return err
}

// Unstage undoes Stage, once no pod has the volume.
func (d *Driver) Unstage(ctx context.Context, volume, staging string) error {
	_, err := call(ctx, d, csi.NodeClient.NodeUnstageVolume,
		&csi.NodeUnstageVolumeRequest{VolumeId: volume, StagingTargetPath: staging})
	return err
}

// Expand grows what is in a volume that is published at least once.
func (d *Driver) Expand(ctx context.Context, r *csi.NodeExpandVolumeRequest) error {
	_, err := call(ctx, d, csi.NodeClient.NodeExpandVolume, r)
	return err
}

// Stats asks how full a volume is at the path where it is published.
func (d *Driver) Stats(ctx context.Context, volume, path string) ([]*csi.VolumeUsage, error) {
	r, err := call(ctx, d, csi.NodeClient.NodeGetVolumeStats,
		&csi.NodeGetVolumeStatsRequest{VolumeId: volume, VolumePath: path})
	return r.GetUsage(), err
}

// Capabilities are what a driver can do.
type Capabilities map[csi.NodeServiceCapability_RPC_Type]bool

// Stages reports whether volumes are staged before they are published.
func (c Capabilities) Stages() bool { return c[csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME] }

// Expands reports whether the node has a part in the expansion of volumes.
func (c Capabilities) Expands() bool { return c[csi.NodeServiceCapability_RPC_EXPAND_VOLUME] }

// Measures reports whether the driver knows how full volumes are.
func (c Capabilities) Measures() bool { return c[csi.NodeServiceCapability_RPC_GET_VOLUME_STATS] }

// GivesToGroup reports whether the driver itself gives a volume to a group.
func (c Capabilities) GivesToGroup() bool { return c[csi.NodeServiceCapability_RPC_VOLUME_MOUNT_GROUP] }

// Distinguishes reports whether the driver knows access modes for one writer on a node and for several.
func (c Capabilities) Distinguishes() bool {
	return c[csi.NodeServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER]
}

// Final reports whether a call that returned err is over: the driver has not done what was asked for, and does not go
// on with it. After other errors that is unknown.
func Final(err error) bool {
	var s interface{ GRPCStatus() *status.Status }
	if !errors.As(err, &s) {
		return false
	}
	switch s.GRPCStatus().Code() {
	case codes.OK, codes.Canceled, codes.DeadlineExceeded, codes.Unavailable, codes.ResourceExhausted, codes.Aborted:
		return false
	}
	return true
}

// call calls one method within its deadline.
func call[Q, R any](ctx context.Context, d *Driver, method func(csi.NodeClient, context.Context, Q,
	...grpc.CallOption) (R, error), request Q) (R, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	conn, err := grpc.NewClient("passthrough:///"+d.name,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(d.dial),
		grpc.WithUnaryInterceptor(d.measure),
		grpc.WithMaxHeaderListSize(maxAnswer),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxAnswer)),
	)
	if err != nil {
		var none R
		return none, fmt.Errorf("CSI driver %s: %w", d.name, err)
	}
	defer func() { _ = conn.Close() }()
	answer, err := method(csi.NewNodeClient(conn), ctx, request)
	return answer, readable(err)
}

// readable makes of what a driver says text that fits into an Event.
func readable(err error) error {
	s, ok := status.FromError(err)
	if err == nil || !ok {
		return err
	}
	text := s.Message()
	if len(text) > maxText {
		text = text[:maxText] + "…"
	}
	if text = strings.ToValidUTF8(text, "\uFFFD"); text == s.Message() {
		return err
	}
	return status.Error(s.Code(), text)
}

// dial looks at the socket each time: a driver that starts again has another one, which may be a link where the one was
// not that registered.
func (d *Driver) dial(ctx context.Context, _ string) (net.Conn, error) {
	return d.folder.Dial(ctx, d.endpoint)
}

// measure notes how long a call takes.
func (d *Driver) measure(ctx context.Context, method string, request, answer any, conn *grpc.ClientConn,
	invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	began := time.Now()
	err := invoke(ctx, method, request, answer, conn, opts...)
	d.seconds.WithLabelValues(d.name, method, status.Code(err).String(), "false").Observe(time.Since(began).Seconds())
	return err
}
