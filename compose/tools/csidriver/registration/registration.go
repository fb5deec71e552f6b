// Package registration registers a CSI driver with the node agent.
package registration

import (
	"context"

	"google.golang.org/grpc"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

// Driver is what the node agent learns about a driver.
type Driver struct {
	// Name of the driver, and the path of the socket at which the agent finds it.
	Name, Endpoint string
	// Refused is called with the agent's reason if it does not take the driver.
	Refused func(reason string)
}

// Server returns a server of the registration alone, for a socket in the agent's folder plugins_registry.
func Server(d Driver) *grpc.Server {
	server := grpc.NewServer()
	registerapi.RegisterRegistrationServer(server, registration{Driver: d})
	return server
}

type registration struct {
	registerapi.UnimplementedRegistrationServer
	Driver
}

func (r registration) GetInfo(context.Context, *registerapi.InfoRequest) (*registerapi.PluginInfo, error) {
	return &registerapi.PluginInfo{
		Type: registerapi.CSIPlugin, Name: r.Name, Endpoint: r.Endpoint, SupportedVersions: []string{"1.0.0"},
	}, nil
}

func (r registration) NotifyRegistrationStatus(_ context.Context, s *registerapi.RegistrationStatus) (
	*registerapi.RegistrationStatusResponse, error,
) {
	if !s.GetPluginRegistered() {
		r.Refused(s.GetError())
	}
	return &registerapi.RegistrationStatusResponse{}, nil
}
