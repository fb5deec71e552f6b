package volumes

import (
	"context"
	"log/slog"

	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"

	"github.com/microlet/microlet/services/internal/childpool"
	"github.com/microlet/microlet/services/podsync/internal/cluster"
	"github.com/microlet/microlet/services/podsync/internal/volumes/internal/csivolume"
	"github.com/microlet/microlet/services/podsync/internal/volumes/internal/selinuxlabel"
)

// persistentCSI are PersistentVolumes with csi.
type persistentCSI struct {
	csi CSI
	// root is --root-dir.
	root    string
	foreign childpool.Runner
	events  events
	log     *slog.Logger
}

func (*persistentCSI) handles(v *cluster.ClaimedVolume) bool { return v.PV.Spec.CSI != nil }

func (c *persistentCSI) setUp(ctx context.Context, s *Spec, v *cluster.ClaimedVolume, label *selinuxlabel.Label) (
	Mounted, bool, error) {
	of := csiVolume(s, v)
	if label != nil {
		of.Label = label.Mount
	}
	return publish(ctx, c.csi, c.foreign, c.events, c.log, of)
}

func (c *persistentCSI) isElsewhere(pv string, own types.UID) (bool, error) {
	return csivolume.IsElsewhere(c.root, pv, own)
}

func (c *persistentCSI) globalMap(pv string) string { return csivolume.GlobalMap(c.root, pv) }

func (c *persistentCSI) grow(ctx context.Context, s *Spec, v *cluster.ClaimedVolume, _ string,
	size resource.Quantity) error {
	return c.csi.Expand(ctx, csiVolume(s, v), size)
}

func csiVolume(s *Spec, v *cluster.ClaimedVolume) *csivolume.Volume {
	return &csivolume.Volume{Pod: s.Pod, PV: v.PV, ReadOnly: v.ReadOnly}
}
