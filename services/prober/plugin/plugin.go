// Package plugin provides the main function of a probe plugin.
//
// A plugin is a program that the owner of the node puts into the prober's plugin folder. It gets a request for each
// probe and returns the result. It runs beside the prober, with the prober's user and none of its connections, and
// serves all probes that name it, several at a time. Its main function only has to call Serve. docs/plugins.md says
// how to write and install a plugin.
package plugin

import (
	"context"
	"time"

	"github.com/hashicorp/go-plugin"
	"google.golang.org/grpc"

	probepluginv1 "github.com/microlet/microlet/proto/microlet/probeplugin/v1"
)

// Name is under which a plugin serves its probe.
const Name = "probe"

// Handshake distinguishes a probe plugin from other programs. Its version grows only if the contract breaks.
var Handshake = plugin.HandshakeConfig{
	ProtocolVersion: 1, MagicCookieKey: "MICROLET_PROBE_PLUGIN", MagicCookieValue: "c0a1d0e7-probe",
}

// Probe decides whether a container is well. The context ends at the probe's timeout. An error says
// that it could not be found out, which counts as no failure.
type Probe func(ctx context.Context, r *probepluginv1.ProbeRequest) (healthy bool, message string, err error)

// Serve serves the prober until it ends the process. It is to be called from main, and prints how to
// use the program when it is run by hand.
func Serve(probe Probe) {
	plugin.Serve(&plugin.ServeConfig{
		HandshakeConfig: Handshake, GRPCServer: plugin.DefaultGRPCServer,
		Plugins: plugin.PluginSet{Name: &Bridge{Probe: probe}},
	})
}

// Bridge connects a Probe with go-plugin's gRPC, at either side: a plugin sets Probe, the prober
// dispenses a probepluginv1.ProbePluginServiceClient.
type Bridge struct {
	plugin.NetRPCUnsupportedPlugin
	Probe Probe
}

var _ plugin.GRPCPlugin = (*Bridge)(nil)

// GRPCServer implements plugin.GRPCPlugin.
func (b *Bridge) GRPCServer(_ *plugin.GRPCBroker, s *grpc.Server) error {
	probepluginv1.RegisterProbePluginServiceServer(s, &server{probe: b.Probe})
	return nil
}

// GRPCClient implements plugin.GRPCPlugin.
func (b *Bridge) GRPCClient(_ context.Context, _ *plugin.GRPCBroker, c *grpc.ClientConn) (any, error) {
	return probepluginv1.NewProbePluginServiceClient(c), nil
}

type server struct {
	probepluginv1.UnimplementedProbePluginServiceServer
	probe Probe
}

// Probe implements probepluginv1.ProbePluginServiceServer.
func (s *server) Probe(ctx context.Context, r *probepluginv1.ProbeRequest) (*probepluginv1.ProbeResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Duration(r.GetTimeoutMilliseconds())*time.Millisecond)
	defer cancel()
	healthy, message, err := s.probe(ctx, r)
	if err != nil {
		return nil, err
	}
	return &probepluginv1.ProbeResponse{Healthy: healthy, Message: message}, nil
}
