package csivolume

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"path/filepath"
	"slices"
	"sync"

	"github.com/container-storage-interface/spec/lib/go/csi"
	authenticationv1 "k8s.io/api/authentication/v1"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/microlet/microlet/services/podsync/internal/volumes/internal/blockdevice"
	csidriver "github.com/microlet/microlet/services/podsync/internal/volumes/internal/csi"
	"github.com/microlet/microlet/services/podsync/internal/volumes/internal/metrics"
)

// Drivers are those that are registered.
type Drivers interface {
	Driver(name string) (*csidriver.Driver, error)
	// Refresh asks a driver, and has the CSINode say what it answers.
	Refresh(ctx context.Context, name string) error
	// Changed is closed when the next driver is registered.
	Changed() <-chan struct{}
}

// API is what the cluster says of drivers and volumes.
type API interface {
	// CSIDriver returns the object of a driver, or nil if there is none.
	CSIDriver(ctx context.Context, name string) (*storagev1.CSIDriver, error)
	VolumeAttachment(ctx context.Context, name string) (*storagev1.VolumeAttachment, error)
	Secret(ctx context.Context, namespace, name string) (*v1.Secret, error)
}

// Tokens are the service accounts' tokens.
type Tokens interface {
	Token(ctx context.Context, namespace, serviceAccount string,
		request *authenticationv1.TokenRequest) (*authenticationv1.TokenRequest, error)
}

// Devices map for pods the block devices that drivers publish.
type Devices interface {
	Map(ctx context.Context, m blockdevice.Mapping) (blockdevice.State, error)
	// Unmap undoes a mapping but for its link.
	Unmap(ctx context.Context, m blockdevice.Mapping) error
}

// SubPaths are the binds of what pods mount of their volumes in part.
type SubPaths interface {
	// Unmount unmounts those of a pod's volume that is mounted at a path. They keep it from being unstaged.
	Unmount(ctx context.Context, pod types.UID, volume string) error
}

// Options of Volumes.
type Options struct {
	// RootDir is the kubelet's --root-dir.
	RootDir string
	// Node is the node's name.
	Node string
	// ByNode says that no controller attaches volumes to the node (enableControllerAttachDetach is false).
	ByNode  bool
	Drivers Drivers
	API     API
	Tokens  Tokens
	Devices Devices
	// SubPaths are unmounted before their volume. Nil unmounts none.
	SubPaths SubPaths
	InUse    InUse
	// Metrics measure the unstaging. Nil shows none.
	Metrics *metrics.Metrics
	// SELinux says that the node has SELinux.
	SELinux bool
	Log     *slog.Logger
}

// Volumes are those of CSI drivers. They are safe for concurrent use.
type Volumes struct {
	o      Options
	layout layout
	locks  locks

	mu sync.Mutex
	// holders are the pods that have a volume, or try to get it, since the process started, and the volume's folder on
	// the node.
	holders map[device]map[types.UID]string
	// staged are the paths at which this process has staged volumes.
	staged map[string]bool
	// attachable are the drivers of those holders, and whether their volumes are attached.
	attachable map[string]bool
	// unknown is what was last logged of staged volumes that are unknown.
	unknown string
	// inUseChanged is sent to when another volume may be in use, or one no more.
	inUseChanged chan struct{}
	// unused is sent to when a volume may have no pod any more.
	unused chan struct{}
}

// New returns Volumes; Run unstages what no pod has, and TellInUse keeps attached what is in use.
func New(o Options) *Volumes {
	if o.Log == nil {
		o.Log = slog.Default()
	}
	if o.Metrics == nil {
		o.Metrics = metrics.New(nil, nil)
	}
	return &Volumes{
		o: o, layout: layout{o.RootDir}, locks: locks{calls: newCalls()}, holders: map[device]map[types.UID]string{},
		staged: map[string]bool{}, attachable: map[string]bool{}, inUseChanged: make(chan struct{}, 1),
		unused: make(chan struct{}, 1),
	}
}

// Volume is one that a pod wants.
type Volume struct {
	Pod *v1.Pod
	// PV is the PersistentVolume, whose source is CSI. Nil is an inline volume.
	PV *v1.PersistentVolume
	// Name is that of an inline volume in the pod, and Inline its source.
	Name     string
	Inline   *v1.CSIVolumeSource
	ReadOnly bool
	// Label is the SELinux label with which to mount a PersistentVolume; empty for none.
	Label string
}

func (v *Volume) name() string {
	if v.PV != nil {
		return v.PV.Name
	}
	return v.Name
}

func (v *Volume) device() device {
	if v.PV != nil {
		return device{v.PV.Spec.CSI.Driver, v.PV.Spec.CSI.VolumeHandle}
	}
	return device{v.Inline.Driver, inlineHandle(v.Pod.UID, v.Name)}
}

// isBlock reports whether pods get the volume as a device.
func (v *Volume) isBlock() bool {
	return v.PV != nil && v.PV.Spec.VolumeMode != nil && *v.PV.Spec.VolumeMode == v1.PersistentVolumeBlock
}

func (v *Volume) mode() storagev1.VolumeLifecycleMode {
	if v.PV != nil {
		return storagev1.VolumeLifecyclePersistent
	}
	return storagev1.VolumeLifecycleEphemeral
}

// Published is a volume that a pod has.
type Published struct {
	// Path is where it is mounted. Of a block volume Device is the link to the device instead.
	Path, Device string
	// GiveToGroup says that its files are to be given to the pod's fsGroup.
	GiveToGroup bool
	// Republish says that the driver wants to be asked again from time to time.
	Republish bool
	// Label is the SELinux label with which it is mounted; empty for none.
	Label string
}

// Error is an error of one step.
type Error struct {
	// Step is how the Event begins, such as "MountVolume.SetUp failed".
	Step string
	Err  error
}

func (e *Error) Error() string { return fmt.Sprintf("%s: %v", e.Step, e.Err) }

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// steps are the kubelet's names of what fails.
type steps struct{ attach, stage, setUp string }

// stepAttach is a step that no node takes any more. Its text and its error are the kubelet's.
const stepAttach = "AttachVolume.Attach failed"

var (
	mountSteps = steps{
		"MountVolume.WaitForAttach failed", "MountVolume.MountDevice failed", "MountVolume.SetUp failed",
	}
	mapSteps = steps{
		"MapVolume.WaitForAttach failed", "MapVolume.SetUpDevice failed", "MapVolume.MapPodDevice failed",
	}
)

// Publish gives the volume to the pod. It repeats what an earlier call of an unknown end has begun. An error is
// an *Error, *NotAttached, *LimitExceeded or *OtherLabel.
func (vs *Volumes) Publish(ctx context.Context, v *Volume) (Published, error) {
	if err := vs.refuseAttaching(ctx, v); err != nil {
		return Published{}, err
	}
	s, err := vs.begin(ctx, v)
	if err != nil {
		return Published{}, err
	}
	vs.hold(s)
	if err := s.awaitAttached(ctx); err != nil {
		return Published{}, err
	}
	locked, err := vs.locks.lock(ctx, s.device)
	if err != nil {
		return Published{}, &Error{s.first(), err}
	}
	defer locked.release()
	s.locked = locked
	if err := s.attached(ctx); err != nil {
		return Published{}, &Error{s.steps().attach, err}
	}
	if err := s.settleLabel(ctx); err != nil {
		return Published{}, err
	}
	if s.stages() && !vs.isStaged(s.staging()) {
		if err := s.stage(ctx); err != nil {
			return Published{}, &Error{s.steps().stage, err}
		}
		vs.noteStaged(s.staging(), true)
	}
	if err := s.publish(ctx); err != nil {
		return Published{}, &Error{s.steps().setUp, err}
	}
	if s.isBlock() {
		return s.mapDevice(ctx)
	}
	return Published{
		Path: s.target, GiveToGroup: s.giveToGroup(), Republish: s.republishes(), Label: s.label,
	}, nil
}

// refuseAttaching refuses a volume that this node would have to attach. As with the kubelet, that comes before the
// driver is looked for.
func (vs *Volumes) refuseAttaching(ctx context.Context, v *Volume) error {
	if !vs.o.ByNode || v.PV == nil {
		return nil
	}
	object, err := vs.o.API.CSIDriver(ctx, v.device().driver)
	if err == nil && attachRequired(object) {
		err = errors.New("attaching volumes from the kubelet is not supported")
	}
	if err != nil {
		return &Error{stepAttach, err}
	}
	return nil
}

// begin learns what a setup needs.
func (vs *Volumes) begin(ctx context.Context, v *Volume) (*setup, error) {
	s := &setup{vs: vs, Volume: v, device: v.device()}
	fail := func(err error) (*setup, error) { return nil, &Error{s.first(), err} }
	if err := validName(v.name()); err != nil {
		return fail(err)
	}
	if err := validName(s.device.driver); err != nil {
		return fail(err)
	}
	s.target = vs.layout.target(v.Pod.UID, v.name())
	if v.isBlock() {
		if err := validBlock(v.PV.Name); err != nil {
			return fail(err)
		}
		s.target = vs.layout.blockTarget(v.Pod.UID, v.PV.Name)
	}
	var err error
	if s.driver, err = vs.driver(ctx, s.device.driver); err != nil {
		return fail(err)
	}
	if s.object, err = vs.o.API.CSIDriver(ctx, s.device.driver); err != nil {
		return fail(err)
	}
	if err := s.supported(); err != nil {
		return nil, &Error{s.steps().setUp, err}
	}
	if s.can, err = s.driver.Capabilities(ctx); err != nil {
		return fail(err)
	}
	return s, nil
}

// validName keeps a name, which the API server has checked, from being a path.
func validName(name string) error {
	if name == "" || name == "." || name == ".." || filepath.Base(name) != name {
		return fmt.Errorf("%q cannot be the name of a folder", name)
	}
	return nil
}

// Unpublish takes all its volumes from a pod, also those that other processes have given. It fails as long as a driver
// that is needed is not registered.
func (vs *Volumes) Unpublish(ctx context.Context, pod types.UID) error {
	defer vs.release(pod)
	dir := vs.layout.volumes(pod)
	names, err := entries(dir)
	if err != nil {
		return err
	}
	blocks, err := vs.layout.blocksOf(pod)
	if err != nil {
		return err
	}
	errs := make([]error, len(names)+len(blocks))
	var all sync.WaitGroup
	for i, name := range append(names, blocks...) {
		all.Go(func() {
			do := func() error {
				if err := vs.unmountSubPaths(ctx, pod, name); err != nil {
					return err
				}
				return vs.unpublish(ctx, filepath.Join(dir, name))
			}
			if i >= len(names) {
				do = func() error { return vs.unmap(ctx, pod, name) }
			}
			if err := do(); err != nil {
				errs[i] = fmt.Errorf("volume %s: %w", name, err)
			}
		})
	}
	all.Wait()
	return errors.Join(errs...)
}

func (vs *Volumes) unmountSubPaths(ctx context.Context, pod types.UID, name string) error {
	if vs.o.SubPaths == nil {
		return nil
	}
	return vs.o.SubPaths.Unmount(ctx, pod, vs.layout.target(pod, name))
}

func (vs *Volumes) unpublish(ctx context.Context, dir string) error {
	data, err := load(dir)
	if err != nil {
		// It belongs to no known volume. Without a mount there is nothing that a driver could undo.
		if removed := remove(ctx, dir, target); removed != nil {
			return fmt.Errorf("%w, and %w", err, removed)
		}
		return nil
	}
	locked, err := vs.locks.lock(ctx, data.device())
	if err != nil {
		return err
	}
	defer locked.release()
	driver, err := vs.driver(ctx, data.Driver)
	if err != nil {
		return err
	}
	if err := locked.unpublish(ctx, driver, data.Handle, filepath.Join(dir, target)); err != nil {
		return err
	}
	return remove(ctx, dir, target)
}

// hold notes that the pod has the volume, or tries to get it. No other pod has an inline volume.
func (vs *Volumes) hold(s *setup) {
	if s.PV == nil {
		return
	}
	vs.mu.Lock()
	vs.attachable[s.device.driver] = s.attachable()
	if vs.holders[s.device] == nil {
		vs.holders[s.device] = map[types.UID]string{}
	}
	vs.holders[s.device][s.Pod.UID] = s.dir()
	vs.mu.Unlock()
	vs.changeInUse()
}

// release forgets a pod, and has Run look for what no pod has any more.
func (vs *Volumes) release(pod types.UID) {
	vs.mu.Lock()
	for d, pods := range vs.holders {
		if delete(pods, pod); len(pods) == 0 {
			delete(vs.holders, d)
		}
	}
	vs.mu.Unlock()
	vs.changeInUse()
	vs.lookForUnused()
}

// lookForUnused has Run look for what no pod has.
func (vs *Volumes) lookForUnused() {
	select {
	case vs.unused <- struct{}{}:
	default:
	}
}

func (vs *Volumes) isStaged(path string) bool {
	vs.mu.Lock()
	defer vs.mu.Unlock()
	return vs.staged[path]
}

func (vs *Volumes) noteStaged(path string, is bool) {
	vs.mu.Lock()
	defer vs.mu.Unlock()
	if is {
		vs.staged[path] = true
	} else {
		delete(vs.staged, path)
	}
}

// accessMode is what the kubelet asks for: the first of the PersistentVolume's.
func (v *Volume) accessMode(can csidriver.Capabilities) *csi.VolumeCapability_AccessMode {
	mode := v1.ReadWriteOnce
	if v.PV != nil && len(v.PV.Spec.AccessModes) > 0 {
		mode = v.PV.Spec.AccessModes[0]
	}
	asked := csi.VolumeCapability_AccessMode_UNKNOWN
	switch mode {
	case v1.ReadWriteOnce:
		asked = csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER
		if can.Distinguishes() {
			asked = csi.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER
		}
	case v1.ReadWriteOncePod:
		asked = csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER
		if can.Distinguishes() {
			asked = csi.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER
		}
	case v1.ReadOnlyMany:
		asked = csi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY
	case v1.ReadWriteMany:
		asked = csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER
	}
	return &csi.VolumeCapability_AccessMode{Mode: asked}
}

// writesOnce reports whether one node alone may write.
func (v *Volume) writesOnce() bool {
	return v.PV == nil || slices.ContainsFunc(v.PV.Spec.AccessModes, func(m v1.PersistentVolumeAccessMode) bool {
		return m == v1.ReadWriteOnce || m == v1.ReadWriteOncePod
	})
}

// merged is the two maps in one that is its caller's.
func merged(a, b map[string]string) map[string]string {
	out := make(map[string]string, len(a)+len(b))
	maps.Copy(out, a)
	maps.Copy(out, b)
	return out
}
