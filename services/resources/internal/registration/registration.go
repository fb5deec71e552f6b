// Package registration is the server at device-plugins/kubelet.sock, on which device plugins register.
//
// A plugin names its resource and its socket in the same folder, which the manager of devices then connects to.
//
// https://kubernetes.io/docs/concepts/extend-kubernetes/compute-storage-net/device-plugins/#device-plugin-registration
package registration

import (
	"context"
	"path/filepath"

	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// Devices connects to plugins; see devices.Manager.
type Devices interface {
	Register(ctx context.Context, resource, endpoint string, versions []string) error
}

// Server implements the device plugin API's service Registration.
type Server struct {
	pluginapi.UnimplementedRegistrationServer

	folder  string
	devices Devices
}

// New returns a server for the plugins in a folder.
func New(folder string, d Devices) *Server { return &Server{folder: folder, devices: d} }

// Register connects to a plugin, and answers when that has said what options it has. As with the kubelet, an endpoint
// is always one of the folder.
func (s *Server) Register(ctx context.Context, r *pluginapi.RegisterRequest) (*pluginapi.Empty, error) {
	endpoint := filepath.Join(s.folder, r.GetEndpoint())
	if err := s.devices.Register(ctx, r.GetResourceName(), endpoint, []string{r.GetVersion()}); err != nil {
		return nil, err
	}
	return &pluginapi.Empty{}, nil
}
