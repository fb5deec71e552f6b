// Package plugin provides the main function of an image retention plugin.
//
// A plugin is a program that the owner of the node installs. imagegc starts it before it removes images, and ends it
// afterwards. It runs with imagegc's user and none of its connections. Its main function only has to call Serve.
// docs/plugins.md says how to write and install a plugin.
package plugin

import (
	"context"

	"github.com/hashicorp/go-plugin"
	"google.golang.org/grpc"

	retentionv1 "github.com/microlet/microlet/proto/microlet/imageretentionplugin/v1"
)

// Name is under which a plugin serves its policy.
const Name = "image-retention"

// Handshake distinguishes an image retention plugin from other programs. Its version grows only if the contract breaks.
var Handshake = plugin.HandshakeConfig{
	ProtocolVersion: 1, MagicCookieKey: "MICROLET_IMAGE_RETENTION_PLUGIN", MagicCookieValue: "5f3b1c2e-retention",
}

// Keep returns the IDs of the images to keep. With an error, no image is removed.
type Keep func(ctx context.Context, images []*retentionv1.KeepRequest_Image) (ids []string, err error)

// Serve serves imagegc until it ends the process. It is to be called from main, and prints how to use the program when
// it is run by hand.
func Serve(keep Keep) {
	plugin.Serve(&plugin.ServeConfig{
		HandshakeConfig: Handshake, GRPCServer: plugin.DefaultGRPCServer,
		Plugins: plugin.PluginSet{Name: &Bridge{Keep: keep}},
	})
}

// Bridge connects a Keep with go-plugin's gRPC, at either side: a plugin sets Keep, imagegc dispenses a
// retentionv1.ImageRetentionPluginServiceClient.
type Bridge struct {
	plugin.NetRPCUnsupportedPlugin
	Keep Keep
}

var _ plugin.GRPCPlugin = (*Bridge)(nil)

// GRPCServer implements plugin.GRPCPlugin.
func (b *Bridge) GRPCServer(_ *plugin.GRPCBroker, s *grpc.Server) error {
	retentionv1.RegisterImageRetentionPluginServiceServer(s, &server{keep: b.Keep})
	return nil
}

// GRPCClient implements plugin.GRPCPlugin.
func (b *Bridge) GRPCClient(_ context.Context, _ *plugin.GRPCBroker, c *grpc.ClientConn) (any, error) {
	return retentionv1.NewImageRetentionPluginServiceClient(c), nil
}

type server struct {
	retentionv1.UnimplementedImageRetentionPluginServiceServer

	keep Keep
}

// Keep implements retentionv1.ImageRetentionPluginServiceServer.
func (s *server) Keep(ctx context.Context, r *retentionv1.KeepRequest) (*retentionv1.KeepResponse, error) {
	ids, err := s.keep(ctx, r.GetImages())
	if err != nil {
		return nil, err
	}
	return &retentionv1.KeepResponse{Ids: ids}, nil
}
