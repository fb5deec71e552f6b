package volumes

import (
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/microlet/microlet/services/internal/logkey"
	"github.com/microlet/microlet/services/internal/podutil"
	"github.com/microlet/microlet/services/podsync/internal/cluster"
	"github.com/microlet/microlet/services/podsync/internal/volumes/internal/metrics"
	"github.com/microlet/microlet/services/podsync/internal/volumes/internal/selinuxlabel"
)

// claimName is the folder of the notes about claims.
const claimName = "kubernetes.io~persistent-volume-claim"

// Claims find the PersistentVolumes that pods have claimed.
type Claims interface {
	Find(ctx context.Context, p *v1.Pod, v *v1.Volume) (*cluster.ClaimedVolume, error)
}

// claim is a PersistentVolume that a pod has claimed.
type claim struct {
	checked *checkedClaims
	kinds   []persistentVolumes
	csi     CSI
	// expansion may be nil.
	expansion Expansion
	notes     *notes
	events    events
	metrics   *metrics.Metrics
	labels    *selinuxlabel.Labels
	log       *slog.Logger
}

func (c *claim) Name() string { return claimName }

func (c *claim) Handles(v *v1.Volume) bool {
	return v.PersistentVolumeClaim != nil || v.Ephemeral != nil
}

func (c *claim) Refreshes(s *Spec) bool { return c.notes.refreshes(s) }

// Check asks the API: a pod without its claims gets no sandbox.
func (c *claim) Check(ctx context.Context, s *Spec) error {
	return errorOfClaim(c.checked.check(ctx, s))
}

func (c *claim) Existing(s *Spec) (Mounted, bool) {
	if !isUsed(s) {
		return Mounted{}, true // as with the kubelet, a volume that no container uses is not set up
	}
	found, ok := c.notes.find(s)
	if ok && found.Label != nil {
		c.labels.Has(s.Pod.UID, found.PV, *found.Label)
	}
	return found.Mounted, ok
}

func (c *claim) SetUp(ctx context.Context, s *Spec) (Mounted, error) {
	has, again := c.notes.find(s)
	found, err := c.checked.take(ctx, s)
	switch {
	case again && !has.Republish:
		if err != nil {
			// Its containers run on with what they have.
			c.log.Warn("a claim of a running pod cannot be looked at", logkey.PodUID, s.Pod.UID, logkey.Err, err,
				slog.String("volume", s.Volume.Name))
		} else {
			c.expandOnline(ctx, s, found, has.Mounted.HostPath)
		}
		return has.Mounted, nil
	case err != nil:
		return Mounted{}, errorOfClaim(err)
	case again:
		return c.republish(ctx, s, found, has.Label)
	}
	label, err := c.label(ctx, s, found)
	if err != nil {
		return Mounted{}, errorOfClaim(err)
	}
	return c.give(ctx, s, found, label)
}

// give sets the volume up for a pod that does not have it.
func (c *claim) give(ctx context.Context, s *Spec, found *cluster.ClaimedVolume, label *selinuxlabel.Label) (
	is Mounted, failed error) {
	defer c.measure(s, found)(&failed)
	held, err := c.mount(ctx, s, found, label)
	if err != nil {
		return Mounted{}, err
	}
	step := stepExpand
	if found.IsBlock() {
		c.events.mapped(s.Pod, found.PV.Name, filepath.Dir(held.Bound), held.Mounted.Device)
		step = stepExpandDevice
	}
	if err := c.expandDuringMount(ctx, s, found, held.Mounted.HostPath); err != nil {
		return Mounted{}, &Error{PV: found.PV.Name, Step: step, Err: err}
	}
	return held.Mounted, c.notes.write(s, held)
}

// republish sets the volume up again for a pod that has it, as its CSIDriver asks for. Its label stays what it was.
func (c *claim) republish(ctx context.Context, s *Spec, found *cluster.ClaimedVolume, label *selinuxlabel.Label) (
	is Mounted, failed error) {
	defer c.measure(s, found)(&failed)
	held, err := c.mount(ctx, s, found, label)
	if err != nil {
		return Mounted{}, err
	}
	c.expandOnline(ctx, s, found, held.Mounted.HostPath)
	return held.Mounted, c.notes.write(s, held)
}

// measure measures a set-up until what it returns is called.
func (c *claim) measure(s *Spec, found *cluster.ClaimedVolume) func(failed *error) {
	plugin, began := c.metrics.PersistentVolume(found.PV), time.Now()
	return func(failed *error) { c.metrics.SetUp(s.Pod.UID, s.Volume.Name, plugin, began, *failed) }
}

// mount mounts or maps what was claimed.
func (c *claim) mount(ctx context.Context, s *Spec, found *cluster.ClaimedVolume, label *selinuxlabel.Label) (
	note, error) {
	pv, kind := found.PV, c.kindOf(found)
	onDevice, _ := kind.(deviceVolumes)
	is := note{
		PV:      pv.Name,
		Plugin:  c.metrics.PersistentVolume(pv),
		Alone:   slices.Equal(pv.Spec.AccessModes, []v1.PersistentVolumeAccessMode{v1.ReadWriteOncePod}),
		Expands: onDevice != nil && !found.ReadOnly,
		Label:   label,
	}
	if is.Alone {
		if err := c.takeAlone(s, found, onDevice); err != nil {
			return note{}, err
		}
	}
	if kind == nil {
		return note{}, errorOfPV(pv.Name, notBuilt(pv))
	}
	var err error
	if is.Mounted, is.Republish, err = kind.setUp(ctx, s, found, label); err != nil {
		return note{}, errorOfPV(pv.Name, err)
	}
	is.Mounted.Group = found.Group
	if found.IsBlock() {
		is.Bound = filepath.Join(onDevice.globalMap(pv.Name), string(s.Pod.UID))
	}
	return is, nil
}

// takeAlone is an error if another pod has the volume, or what a mount of an unknown end has left of it.
func (c *claim) takeAlone(s *Spec, found *cluster.ClaimedVolume, onDevice deviceVolumes) (err error) {
	elsewhere, taken := false, false
	if onDevice != nil {
		elsewhere, err = onDevice.isElsewhere(found.PV.Name, s.Pod.UID)
	}
	if err == nil && !elsewhere {
		taken, err = c.notes.takeAlone(s, found.PV.Name)
	}
	if err == nil && !taken {
		err = errors.New("volume uses the ReadWriteOncePod access mode and is already in use by another pod")
	}
	if err == nil {
		return nil
	}
	step := stepSetUp
	if found.IsBlock() {
		step = stepSetUpDevice
	}
	return &Error{PV: found.PV.Name, Step: step, Err: err}
}

// isUsed reports whether a container of the pod mounts or maps the volume.
func isUsed(s *Spec) bool {
	mounted, mapped := podutil.UsesVolume(&s.Pod.Spec, s.Volume.Name)
	return mounted || mapped
}
