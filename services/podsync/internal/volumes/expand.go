package volumes

import (
	"context"
	"os"

	"k8s.io/apimachinery/pkg/api/resource"
	mount "k8s.io/mount-utils"
	"k8s.io/utils/exec"

	"github.com/microlet/microlet/services/podsync/internal/cluster"
	"github.com/microlet/microlet/services/podsync/internal/volumes/internal/growth"
)

// Expansion grows what is in volumes with their claims; see growth.Expander.
type Expansion interface {
	DuringMount(ctx context.Context, v *growth.Volume) error
	Online(ctx context.Context, v *growth.Volume)
	// Forget drops what is known of a PersistentVolume, which no pod of the node has any more.
	Forget(pv string)
}

// growCall asks for the file system of a local volume to be grown to the size of its device.
type growCall struct {
	// Source is a block device, or a folder, which has what its file system has, as with the kubelet.
	Source string
	// Dir is where it is mounted.
	Dir string
}

func (c *growCall) do() error {
	if err := checkWord("local.path", c.Source); err != nil {
		return err
	}
	info, err := os.Stat(c.Source)
	if err != nil || info.IsDir() {
		return err
	}
	_, err = mount.NewResizeFs(exec.New()).Resize(c.Source, c.Dir)
	return err
}

// expansionOf is nil for a volume that cannot grow; at is where it is mounted.
func (c *claim) expansionOf(s *Spec, found *cluster.ClaimedVolume, at string) *growth.Volume {
	kind, grows := c.kindOf(found).(deviceVolumes)
	if c.expansion == nil || !grows {
		return nil
	}
	return &growth.Volume{
		Pod: s.Pod, Claim: found.Claim, PV: found.PV, ReadOnly: found.ReadOnly,
		Grow: func(ctx context.Context, size resource.Quantity) error { return kind.grow(ctx, s, found, at, size) },
	}
}

func (c *claim) expandDuringMount(ctx context.Context, s *Spec, found *cluster.ClaimedVolume, at string) error {
	if v := c.expansionOf(s, found, at); v != nil {
		return c.expansion.DuringMount(ctx, v)
	}
	return nil
}

func (c *claim) expandOnline(ctx context.Context, s *Spec, found *cluster.ClaimedVolume, at string) {
	if v := c.expansionOf(s, found, at); v != nil {
		c.expansion.Online(ctx, v)
	}
}
