package volumes

import (
	"context"

	"github.com/microlet/microlet/services/internal/childpool"
	"github.com/microlet/microlet/services/podsync/internal/volumes/internal/blockdevice"
)

// Devices map block devices for pods in child processes. One mapping of a volume is made or undone at a time.
type Devices struct{ Foreign childpool.Runner }

// Map maps a device.
func (d Devices) Map(ctx context.Context, m blockdevice.Mapping) (blockdevice.State, error) {
	return d.mapUnless(ctx, m, "")
}

// mapUnless maps a device unless it is in a folder, if one is named.
func (d Devices) mapUnless(ctx context.Context, m blockdevice.Mapping, private string) (blockdevice.State, error) {
	return mapDevice.Do(ctx, d.Foreign, m.Volume, mapCall{Mapping: m, Private: private})
}

// Unmap undoes a mapping except for its link.
func (d Devices) Unmap(ctx context.Context, m blockdevice.Mapping) error {
	_, err := unmapDevice.Do(ctx, d.Foreign, m.Volume, m)
	return err
}

// mapCall asks for a mapping.
type mapCall struct {
	Mapping blockdevice.Mapping
	// Private is the folder that the device must not be in; empty is none.
	Private string
}

func (c *mapCall) do() (blockdevice.State, error) {
	if err := reaches(c.Private, c.Mapping.Device); err != nil {
		return blockdevice.State{}, err
	}
	return c.Mapping.Map()
}
