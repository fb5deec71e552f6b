package volumes

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/microlet/microlet/services/internal/logkey"
	"github.com/microlet/microlet/services/internal/podutil"
	"github.com/microlet/microlet/services/podsync/internal/cluster/persistentvolume"
	"github.com/microlet/microlet/services/podsync/internal/mounter"
	"github.com/microlet/microlet/services/podsync/internal/pod/volumekind"
	"github.com/microlet/microlet/services/podsync/internal/volumes/internal/csivolume"
	"github.com/microlet/microlet/services/podsync/internal/volumes/internal/metrics"
	"github.com/microlet/microlet/services/podsync/internal/volumes/internal/selinuxlabel"
)

// claimName is where it is noted what a claim has come to.
const claimName = "kubernetes.io~persistent-volume-claim"

// Claims find what pods have claimed.
type Claims interface {
	Find(ctx context.Context, p *v1.Pod, v *v1.Volume) (*persistentvolume.Volume, error)
}

// claim is a PersistentVolume that a pod has claimed.
type claim struct {
	checked *checkedClaims
	foreign mounter.Mounter
	private func(p *v1.Pod) string // see Options.Private
	// nfsMounter is Options.NFSMounter.
	nfsMounter string
	csi        CSI
	local      *localVolumes
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
	return notFound(s, c.checked.check(ctx, s))
}

func (c *claim) Existing(s *Spec) (Mounted, bool) {
	if !isUsed(s) {
		return Mounted{}, true // as with the kubelet, nobody looks for it
	}
	found, ok := c.notes.find(s)
	if ok && found.Label != nil {
		c.labels.Has(s.Pod.UID, found.PV, *found.Label)
	}
	return found.Mounted, ok
}

func (c *claim) SetUp(ctx context.Context, s *Spec) (is Mounted, failed error) {
	before, again := c.notes.find(s)
	found, err := c.checked.take(ctx, s)
	if again && !before.Republish {
		if err != nil {
			// Its containers run on with what they have.
			c.log.Warn("a claim of a running pod cannot be looked at", logkey.PodUID, s.Pod.UID, logkey.Err, err,
				slog.String("volume", s.Volume.Name))
			return before.Mounted, nil
		}
		c.expandOnline(ctx, s, found, before.Mounted.HostPath)
		return before.Mounted, nil
	}
	if err != nil {
		return Mounted{}, notFound(s, err)
	}
	label, err := c.label(ctx, s, found, before, again)
	if err != nil {
		return Mounted{}, notFound(s, err)
	}
	plugin, began := c.metrics.PersistentVolume(found.PV), time.Now()
	defer func() { c.metrics.SetUp(s.Pod.UID, s.Volume.Name, plugin, began, failed) }()
	held, err := c.mount(ctx, s, found, label)
	if err != nil {
		return Mounted{}, err
	}
	held.Plugin = plugin
	if found.IsBlock() {
		held.Bound = filepath.Join(c.globalMap(found), string(s.Pod.UID))
	}
	if found.IsBlock() && !again {
		c.events.mapped(s.Pod, found.PV.Name, c.globalMap(found), held.Mounted.Device)
	}
	if again {
		c.expandOnline(ctx, s, found, held.Mounted.HostPath)
	} else if err := c.expandDuringMount(ctx, s, found, held.Mounted.HostPath); err != nil {
		step := "MountVolume.Setup failed while expanding volume"
		if found.IsBlock() {
			step = "MapVolume.MarkVolumeAsMounted failed while expanding volume"
		}
		return Mounted{}, &mountError{step, found.PV.Name, err}
	}
	return held.Mounted, c.notes.write(s, held)
}

// mount mounts what was claimed.
func (c *claim) mount(ctx context.Context, s *Spec, found *persistentvolume.Volume, label *selinuxlabel.Label) (
	held note, err error) {
	pv := found.PV
	held = note{
		PV:      pv.Name,
		Alone:   slices.Equal(pv.Spec.AccessModes, []v1.PersistentVolumeAccessMode{v1.ReadWriteOncePod}),
		Expands: grows(found) && !found.ReadOnly,
		Label:   label,
	}
	if held.Alone {
		if err := c.takeAlone(s, found); err != nil {
			return note{}, err
		}
	}
	switch {
	case pv.Spec.HostPath != nil:
		held.Mounted, err = c.setUpHostPath(ctx, s, found)
	case pv.Spec.Local != nil:
		held.Mounted, err = c.local.setUp(ctx, s, found)
	case pv.Spec.NFS != nil && !found.IsBlock():
		held.Mounted, err = c.setUpNFS(ctx, s, found)
	case pv.Spec.CSI != nil:
		held.Mounted, held.Republish, err = publish(ctx, c.csi, c.foreign, c.events, c.log, labeled(s, found, label))
	default:
		err = notBuilt(pv)
	}
	var waits *csivolume.NotAttached
	var other *csivolume.OtherLabel
	switch {
	case errors.As(err, &waits):
		return note{}, &claimError{s.Volume.Name, unattached, waits.Err}
	case errors.As(err, &other):
		return note{}, &claimError{s.Volume.Name, unmounted, other}
	case err != nil:
		return note{}, stepOf(pv.Name, err)
	}
	held.Mounted.Group = found.Group
	return held, nil
}

// takeAlone is an error if another pod has the volume, or what a mount of an unknown end has left of it.
func (c *claim) takeAlone(s *Spec, found *persistentvolume.Volume) error {
	elsewhere, err := c.isElsewhere(s, found)
	taken := false
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
	return &mountError{step, found.PV.Name, err}
}

// isElsewhere reports whether the folder of another pod tells of the volume. A kubelet before this process has left no
// note.
func (c *claim) isElsewhere(s *Spec, found *persistentvolume.Volume) (bool, error) {
	switch {
	case found.PV.Spec.CSI != nil:
		return csivolume.IsElsewhere(c.local.root, found.PV.Name, s.Pod.UID)
	case found.PV.Spec.Local != nil:
		return c.local.isElsewhere(found.PV.Name, s.Pod.UID)
	}
	return false, nil
}

// globalMap is the folder of the mappings of a block volume.
func (c *claim) globalMap(found *persistentvolume.Volume) string {
	if found.PV.Spec.CSI != nil {
		return csivolume.GlobalMap(c.local.root, found.PV.Name)
	}
	return c.local.mapping("", found.PV.Name).Volume
}

func csiVolume(s *Spec, found *persistentvolume.Volume) *csivolume.Volume {
	return &csivolume.Volume{Pod: s.Pod, PV: found.PV, ReadOnly: found.ReadOnly}
}

// notBuilt says why there is no PersistentVolume of a kind, and what to use instead.
func notBuilt(pv *v1.PersistentVolume) error {
	kind := volumekind.Of(pv.Spec.PersistentVolumeSource)
	if instead := volumekind.Instead(kind); instead != "" {
		return fmt.Errorf("PersistentVolume %s has spec.%s, which is not built: use %s", pv.Name, kind, instead)
	}
	return fmt.Errorf("PersistentVolume %s has spec.%s, which is not built: use one with csi, local, nfs or hostPath",
		pv.Name, kind)
}

// setUpHostPath has nothing mounted: the container gets the path itself.
func (c *claim) setUpHostPath(ctx context.Context, s *Spec, found *persistentvolume.Volume) (Mounted, error) {
	source := found.PV.Spec.HostPath
	if found.IsBlock() {
		return Mounted{}, &mountError{stepFindMapper, found.PV.Name,
			errors.New("a hostPath cannot be mapped as a device: use a local PersistentVolume")}
	}
	if len(found.PV.Spec.MountOptions) > 0 {
		return Mounted{}, &mountError{"MountVolume.MountOptionSupport check failed", found.PV.Name,
			errors.New("mount options are not supported for this volume type")}
	}
	if climbs(source.Path) {
		return Mounted{}, fmt.Errorf("invalid HostPath `%s`: must not contain '..'", source.Path)
	}
	call := hostPathCall{Path: source.Path, Private: c.private(s.Pod)}
	if source.Type != nil {
		call.Type = *source.Type
	}
	_, err := checkHostPath.Do(ctx, c.foreign, call.Path, call)
	return Mounted{HostPath: source.Path, ReadOnly: found.ReadOnly}, err
}

// isUsed reports whether a container of the pod mounts or maps the volume.
func isUsed(s *Spec) bool {
	mounted, mapped := podutil.UsesVolume(&s.Pod.Spec, s.Volume.Name)
	return mounted || mapped
}

// Steps of the kubelet, by which its Events begin.
const (
	stepSetUp       = "MountVolume.SetUp failed"
	stepNewMounter  = "MountVolume.NewMounter initialization failed"
	stepMountDevice = "MountVolume.MountDevice failed"
	stepFindMapper  = "MapVolume.FindMapperPluginBySpec failed"
	stepSetUpDevice = "MapVolume.SetUpDevice failed"
)

// mountError is an error whose Event begins otherwise than those of most volumes.
type mountError struct {
	step, volume string
	err          error
}

func (e *mountError) Error() string {
	return fmt.Sprintf("%s for volume %q : %v", e.step, e.volume, e.err)
}

// Unwrap returns the cause.
func (e *mountError) Unwrap() error { return e.err }

// claimError is an error about the claim itself, its attachment or its label. Its Event is the kubelet's.
type claimError struct {
	volume string
	state  claimState
	err    error
}

// claimState is what the kubelet's Event says of the volume.
type claimState int

const (
	// unprocessed is one that cannot be processed.
	unprocessed claimState = iota
	// unattached is one that nobody attaches, unmounted one that waits for something else.
	unattached
	unmounted
)

func (e *claimError) Error() string {
	var named [unmounted + 1]string
	named[e.state] = e.volume
	return fmt.Sprintf("Unable to attach or mount volumes: unmounted volumes=[%s], unattached volumes=[%s], "+
		"failed to process volumes=[%s]: %v", e.volume, named[unattached], named[unprocessed], e.err)
}

// Unwrap returns the cause.
func (e *claimError) Unwrap() error { return e.err }

// stepOf names the step that failed, unless the error does.
func stepOf(volume string, err error) error {
	var told *mountError
	var csi *csivolume.Error
	switch {
	case errors.As(err, &told):
		return err
	case errors.As(err, &csi):
		return &mountError{csi.Step, volume, csi.Err}
	}
	return &mountError{stepSetUp, volume, err}
}

func notFound(s *Spec, err error) error {
	if err == nil {
		return nil
	}
	return &claimError{s.Volume.Name, unprocessed, err}
}
