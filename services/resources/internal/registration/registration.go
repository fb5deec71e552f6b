// Package registration is the server at device-plugins/kubelet.sock, on which device plugins register.
//
// A plugin names its resource and its socket in the same folder, which the manager of devices then connects to.
//
// https://kubernetes.io/docs/concepts/extend-kubernetes/compute-storage-net/device-plugins/#device-plugin-registration
package registration

import (
	"context"
	"log/slog"
	"path/filepath"

	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/microlet/microlet/services/internal/logkey"
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
	log     *slog.Logger
}

// New returns a server for the plugins in a folder.
func New(folder string, d Devices, log *slog.Logger) *Server {
	return &Server{folder: folder, devices: d, log: log}
}

// Register connects to a plugin, and answers when that has said what options it has. As with the kubelet, an endpoint
// is always one of the folder.
func (s *Server) Register(ctx context.Context, r *pluginapi.RegisterRequest) (*pluginapi.Empty, error) {
	endpoint := filepath.Join(s.folder, r.GetEndpoint())
	log := s.log.With("resourceName", r.GetResourceName(), logkey.Socket, endpoint)
	if err := s.devices.Register(ctx, r.GetResourceName(), endpoint, []string{r.GetVersion()}); err != nil {
		log.Warn("a device plugin was not registered", logkey.Err, err)
		return nil, err
	}
	log.Info("a device plugin was registered")
	return &pluginapi.Empty{}, nil
}
