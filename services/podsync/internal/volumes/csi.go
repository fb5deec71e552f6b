package volumes

import (
	"context"
	"fmt"
	"log/slog"
	"os"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"

	"github.com/microlet/microlet/services/internal/childpool"
	"github.com/microlet/microlet/services/podsync/internal/volumes/internal/csivolume"
)

// CSI gives pods the volumes of CSI drivers.
type CSI interface {
	Publish(ctx context.Context, v *csivolume.Volume) (csivolume.Published, error)
	// Unpublish takes a pod's volumes from it, also those that other processes have given.
	Unpublish(ctx context.Context, pod types.UID) error
	// Expand grows what is in a persistent volume that the pod has; see package growth.
	Expand(ctx context.Context, v *csivolume.Volume, size resource.Quantity) error
	// MountsWithLabel reports whether a driver mounts volumes with an SELinux label.
	MountsWithLabel(ctx context.Context, driver string) (bool, error)
	// Usage says how full a volume of the pod is; name is that of its folder.
	Usage(ctx context.Context, pod types.UID, name string) (csivolume.Usage, error)
	// BlockUsage says how large a block volume of the pod is; pv is the name of its PersistentVolume.
	BlockUsage(ctx context.Context, pod types.UID, pv string) (csivolume.Usage, error)
}

// inlineCSI is a volume that a CSI driver makes for one pod.
type inlineCSI struct {
	csi     CSI
	foreign childpool.Runner
	notes   *notes
	events  events
	log     *slog.Logger
}

func (i *inlineCSI) Name() string { return csivolume.Plugin }

func (i *inlineCSI) Handles(v *v1.Volume) bool { return v.CSI != nil }

func (i *inlineCSI) Refreshes(s *Spec) bool { return i.notes.republishes(s) }

func (i *inlineCSI) Check(context.Context, *Spec) error { return nil }

func (i *inlineCSI) Existing(s *Spec) (Mounted, bool) {
	if !isUsed(s) {
		return Mounted{}, true // as with the kubelet, a volume that no container uses is not set up
	}
	return i.notes.existing(s)
}

func (i *inlineCSI) SetUp(ctx context.Context, s *Spec) (Mounted, error) {
	source := s.Volume.CSI
	mounted, republish, err := publish(ctx, i.csi, i.foreign, i.events, i.log, &csivolume.Volume{
		Pod: s.Pod, Name: s.Volume.Name, Inline: source, ReadOnly: source.ReadOnly != nil && *source.ReadOnly,
	})
	if err != nil {
		return Mounted{}, err
	}
	return mounted, i.notes.write(s, note{Republish: republish, Mounted: mounted})
}

// publish gives the volume to the pod, and to its fsGroup.
func publish(ctx context.Context, csi CSI, foreign childpool.Runner, sent events, log *slog.Logger,
	v *csivolume.Volume) (mounted Mounted, republish bool, err error) {
	published, err := csi.Publish(ctx, v)
	if err != nil {
		return Mounted{}, false, errorOfCSI(err)
	}
	if published.Device != "" {
		return Mounted{Device: published.Device, ReadOnly: v.ReadOnly}, published.Republish, nil
	}
	if published.GiveToGroup {
		call := giveCall{Dir: published.Path, Group: *fsGroup(v.Pod), OnRootMismatch: onRootMismatch(v.Pod)}
		giving, done := sent.giving(ctx, v.Pod, call.Dir)
		refused, err := giveVolume.Do(giving, foreign, call.Dir, call)
		done()
		if err != nil {
			return Mounted{}, false, fmt.Errorf("applyFSGroup failed for vol %s: %w", published.Path, err)
		}
		refused.log(log, published.Path)
	}
	return Mounted{
		HostPath: published.Path, ReadOnly: v.ReadOnly, SELinuxRelabel: published.Label == "" && !v.ReadOnly,
	}, published.Republish, nil
}

// giveCall asks for what is in a volume to be given to a group. OnRootMismatch gives nothing if the folder itself is
// right already.
type giveCall struct {
	Dir            string
	Group          int64
	OnRootMismatch bool
}

func (c *giveCall) do(ctx context.Context) (refusals, error) {
	info, err := os.Stat(c.Dir)
	if err != nil || c.OnRootMismatch && belongs(info, &c.Group) {
		return refusals{}, err
	}
	return giveVolumeToGroup(ctx, c.Dir, &c.Group, groupWrites)
}
