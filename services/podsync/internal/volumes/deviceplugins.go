package volumes

import (
	"context"
	"log/slog"

	"github.com/microlet/microlet/services/internal/logkey"
	"github.com/microlet/microlet/services/podsync/internal/volumes/internal/pluginregistration"
)

// DevicePlugins take device plugins; see grants.Grants. The name of one is that of its extended resource.
type DevicePlugins interface {
	RegisterPlugin(ctx context.Context, resource, endpoint string, versions []string) error
	DeregisterPlugin(ctx context.Context, resource, endpoint string) error
}

// devicePlugins passes on the plugins that register as device plugins.
type devicePlugins struct {
	to  DevicePlugins
	log *slog.Logger
}

// Validate implements pluginregistration.Handler: Register says all that is wrong with a plugin.
func (devicePlugins) Validate(context.Context, pluginregistration.Plugin) error { return nil }

// Register implements pluginregistration.Handler.
func (d devicePlugins) Register(ctx context.Context, p pluginregistration.Plugin) error {
	return d.to.RegisterPlugin(ctx, p.Name, p.Endpoint, p.Versions)
}

// Deregister implements pluginregistration.Handler. If the call fails, the plugin's connection ends all the same, as
// its socket is gone.
func (d devicePlugins) Deregister(ctx context.Context, p pluginregistration.Plugin) {
	if err := d.to.DeregisterPlugin(ctx, p.Name, p.Endpoint); err != nil {
		d.log.Warn("device plugin is not deregistered", "plugin", p.Name, logkey.Err, err)
	}
}
