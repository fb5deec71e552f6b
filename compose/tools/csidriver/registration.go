package main

import (
	"context"
	"fmt"
	"os"

	"google.golang.org/grpc"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

// registration tells the node agent where the driver is, in place of a registrar beside it.
type registration struct {
	registerapi.UnimplementedRegistrationServer
	name, endpoint string
}

func (r registration) GetInfo(context.Context, *registerapi.InfoRequest) (*registerapi.PluginInfo, error) {
	return &registerapi.PluginInfo{
		Type: registerapi.CSIPlugin, Name: r.name, Endpoint: r.endpoint, SupportedVersions: []string{"1.0.0"},
	}, nil
}

func (registration) NotifyRegistrationStatus(_ context.Context, s *registerapi.RegistrationStatus) (
	*registerapi.RegistrationStatusResponse, error,
) {
	if !s.GetPluginRegistered() {
		fmt.Fprintln(os.Stderr, "csidriver: the node agent refuses the driver:", s.GetError())
	}
	return &registerapi.RegistrationStatusResponse{}, nil
}

// server serves the registration alone.
func (r registration) server() *grpc.Server {
	server := grpc.NewServer()
	registerapi.RegisterRegistrationServer(server, r)
	return server
}
