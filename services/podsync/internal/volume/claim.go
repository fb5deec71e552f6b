package volume

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/microlet/microlet/services/internal/atomicfile"
	"github.com/microlet/microlet/services/podsync/internal/mounter"
	"github.com/microlet/microlet/services/podsync/internal/persistentvolume"
)

// claimName is where it is noted what a claim has come to.
const claimName = "kubernetes.io~persistent-volume-claim"

// Claims find what pods have claimed.
type Claims interface {
	Find(ctx context.Context, p *v1.Pod, v *v1.Volume) (*persistentvolume.Volume, error)
}

// claim is a PersistentVolume, of the node's own files, that a pod has claimed.
type claim struct {
	claims  Claims
	foreign mounter.Mounter
	private func(p *v1.Pod) string // see Options.Private
	podDir  func(types.UID) string
	boot    string

	mu sync.Mutex
	// held are the volumes that are set up, by their pods and names.
	held map[types.UID]map[string]heldClaim
}

// heldClaim is a claimed volume that is set up.
type heldClaim struct {
	// PV is the name of the PersistentVolume.
	PV string `json:"persistentVolume"`
	// Alone is ReadWriteOncePod.
	Alone bool `json:"readWriteOncePod,omitempty"`
	// Boot is the kernel's name of the boot in which it was set up: after another nothing is mounted.
	Boot    string  `json:"bootID"`
	Mounted Mounted `json:"mounted"`
}

func (c *claim) Name() string { return claimName }

func (c *claim) Handles(v *v1.Volume) bool {
	return v.PersistentVolumeClaim != nil || v.Ephemeral != nil
}

func (c *claim) Refreshes() bool { return false }

// Check asks the API: a pod without its claims gets no sandbox.
func (c *claim) Check(ctx context.Context, s *Spec) error {
	_, err := c.claims.Find(ctx, s.Pod, s.Volume)
	return notFound(s, err)
}

func (c *claim) Existing(s *Spec) (Mounted, bool) {
	if !isMountedBy(s.Pod, s.Volume.Name) {
		return Mounted{}, true // as with the kubelet, nobody looks for it
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if held, ok := c.held[s.Pod.UID][s.Volume.Name]; ok {
		return held.Mounted, true
	}
	held, err := c.noted(s)
	if err != nil || held.Boot != c.boot {
		return Mounted{}, false
	}
	c.hold(s, held)
	return held.Mounted, true
}

func (c *claim) SetUp(ctx context.Context, s *Spec) (Mounted, error) {
	found, err := c.claims.Find(ctx, s.Pod, s.Volume)
	if err != nil {
		return Mounted{}, notFound(s, err)
	}
	pv := found.PV
	held := heldClaim{PV: pv.Name, Boot: c.boot, Alone: slices.Equal(pv.Spec.AccessModes,
		[]v1.PersistentVolumeAccessMode{v1.ReadWriteOncePod})}
	if held.Alone && c.isHeld(pv.Name, s.Pod.UID) {
		return Mounted{}, &mountError{"MountVolume.SetUp failed", pv.Name,
			errors.New("volume uses the ReadWriteOncePod access mode and is already in use by another pod")}
	}
	switch {
	case pv.Spec.HostPath != nil:
		held.Mounted, err = c.setUpHostPath(ctx, s, found)
	case pv.Spec.Local != nil:
		held.Mounted, err = c.setUpLocal(ctx, s, found)
	default:
		err = fmt.Errorf("PersistentVolume %s is neither local nor a hostPath, and others are not built", pv.Name)
	}
	var told *mountError
	if err != nil && !errors.As(err, &told) {
		err = &mountError{"MountVolume.SetUp failed", pv.Name, err}
	}
	if err != nil {
		return Mounted{}, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.hold(s, held)
	return held.Mounted, c.note(s, held)
}

// isHeld reports whether another pod has the PersistentVolume.
func (c *claim) isHeld(pv string, own types.UID) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for uid, volumes := range c.held {
		for _, held := range volumes {
			if uid != own && held.PV == pv {
				return true
			}
		}
	}
	return false
}

func (c *claim) hold(s *Spec, held heldClaim) {
	if c.held[s.Pod.UID] == nil {
		c.held[s.Pod.UID] = map[string]heldClaim{}
	}
	c.held[s.Pod.UID][s.Volume.Name] = held
}

// forget drops what was noted of a pod.
func (c *claim) forget(pod types.UID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.held, pod)
}

// setUpHostPath has nothing mounted: the container gets the path itself.
func (c *claim) setUpHostPath(ctx context.Context, s *Spec, found *persistentvolume.Volume) (Mounted, error) {
	source := found.PV.Spec.HostPath
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

// localName is the plugin's of local PersistentVolumes.
const localName = "kubernetes.io~local-volume"

func (c *claim) setUpLocal(ctx context.Context, s *Spec, found *persistentvolume.Volume) (Mounted, error) {
	pv := found.PV
	if err := validName(pv.Name); err != nil {
		return Mounted{}, err
	}
	pod := c.podDir(s.Pod.UID)
	dir := filepath.Join(pod, "volumes", localName, pv.Name)
	call := localCall{
		Path: pv.Spec.Local.Path, Dir: dir, Pods: filepath.Dir(pod), ReadOnly: found.ReadOnly,
		Options: pv.Spec.MountOptions, Group: fsGroup(s.Pod), OnRootMismatch: onRootMismatch(s.Pod),
		Private: c.private(s.Pod),
	}
	state, err := mountLocal.Do(ctx, c.foreign, call.Path, call)
	if state.Missing {
		err = &mountError{"MountVolume.NewMounter initialization failed", pv.Name, err}
	}
	return Mounted{HostPath: dir, ReadOnly: found.ReadOnly, SELinuxRelabel: true}, err
}

// noteOf is the file that says what the claim has come to, so that a container that starts again after podsync did
// needs no API server.
func (c *claim) noteOf(s *Spec) string {
	return filepath.Join(s.PluginsDir, claimName, s.Volume.Name+".json")
}

func (c *claim) noted(s *Spec) (held heldClaim, err error) {
	text, err := os.ReadFile(c.noteOf(s))
	if err != nil {
		return held, err
	}
	return held, json.Unmarshal(text, &held)
}

func (c *claim) note(s *Spec, held heldClaim) error {
	text, err := json.Marshal(held)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(c.noteOf(s)), 0o750); err != nil {
		return err
	}
	return atomicfile.Write(c.noteOf(s), text, atomicfile.Attributes{Mode: 0o600, UID: -1, GID: -1})
}

// isMountedBy reports whether a container of the pod mounts the volume.
func isMountedBy(p *v1.Pod, name string) bool {
	mounts := func(list []v1.VolumeMount) bool {
		return slices.ContainsFunc(list, func(m v1.VolumeMount) bool { return m.Name == name })
	}
	for _, list := range [][]v1.Container{p.Spec.InitContainers, p.Spec.Containers} {
		for i := range list {
			if mounts(list[i].VolumeMounts) {
				return true
			}
		}
	}
	return slices.ContainsFunc(p.Spec.EphemeralContainers, func(c v1.EphemeralContainer) bool {
		return mounts(c.VolumeMounts)
	})
}

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

// claimError is an error about the claim itself. Its Event is the kubelet's about a volume that it cannot process.
type claimError struct {
	volume string
	err    error
}

func (e *claimError) Error() string {
	return fmt.Sprintf("Unable to attach or mount volumes: unmounted volumes=[%s], unattached volumes=[], "+
		"failed to process volumes=[%s]: %v", e.volume, e.volume, e.err)
}

// Unwrap returns the cause.
func (e *claimError) Unwrap() error { return e.err }

func notFound(s *Spec, err error) error {
	if err == nil {
		return nil
	}
	return &claimError{s.Volume.Name, err}
}
