package volumes

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"

	"github.com/microlet/microlet/services/internal/childpool"
	"github.com/microlet/microlet/services/podsync/internal/cluster"
	"github.com/microlet/microlet/services/podsync/internal/volumes/internal/blockdevice"
	"github.com/microlet/microlet/services/podsync/internal/volumes/internal/selinuxlabel"
)

const (
	// localName is the name of the plugin of local PersistentVolumes.
	localName = "kubernetes.io~local-volume"
	// localFSType is the file system that is made on a device whose PersistentVolume names none.
	localFSType = "ext4"
)

// localVolumes are local PersistentVolumes: folders of the node, its block devices, and the file systems on them. A
// PersistentVolume is mounted or unmounted for one pod at a time.
type localVolumes struct {
	// root is --root-dir.
	root    string
	foreign childpool.Runner
	// subPaths are those of all pods.
	subPaths SubPaths
	private  func(p *v1.Pod) string // see ManagerOptions.Private
	events   events
	log      *slog.Logger
}

func (l *localVolumes) pods() string { return filepath.Join(l.root, "pods") }

// mounted is the folder of the local volumes that a pod has mounted.
func (l *localVolumes) mounted(pod types.UID) string {
	return filepath.Join(l.pods(), string(pod), "volumes", localName)
}

// global is where the file system on a device is mounted for all pods.
func (l *localVolumes) global(pv string) string {
	return filepath.Join(l.root, "plugins", "kubernetes.io", "local-volume", "mounts", pv)
}

// devices is the folder of the volumes that are mapped, and links the folder of a pod's links to them.
func (l *localVolumes) devices() string {
	return filepath.Join(l.root, "plugins", localName, "volumeDevices")
}

func (l *localVolumes) links(pod types.UID) string {
	return filepath.Join(l.pods(), string(pod), "volumeDevices", localName)
}

func (l *localVolumes) mapping(pod types.UID, pv string) blockdevice.Mapping {
	return blockdevice.Mapping{
		Volume: filepath.Join(l.devices(), pv), Pod: pod, Link: filepath.Join(l.links(pod), pv),
	}
}

// isElsewhere reports whether a pod other than this one has the volume mounted or mapped, or something left of it.
func (l *localVolumes) isElsewhere(pv string, own types.UID) (bool, error) {
	pods, err := os.ReadDir(l.pods())
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, err
	}
	for _, pod := range pods {
		uid := types.UID(pod.Name())
		if uid == own || !pod.IsDir() {
			continue
		}
		m := l.mapping(uid, pv)
		_, linked := os.Lstat(m.Link)
		if linked == nil || m.Exists() || isListed(filepath.Join(l.mounted(uid), pv)) {
			return true, nil
		}
	}
	return false, nil
}

func (l *localVolumes) handles(v *cluster.ClaimedVolume) bool { return v.PV.Spec.Local != nil }

func (l *localVolumes) setUp(ctx context.Context, s *Spec, found *cluster.ClaimedVolume, _ *selinuxlabel.Label) (
	is Mounted, republish bool, err error) {
	if err := validName(found.PV.Name); err != nil {
		return Mounted{}, false, err
	}
	if found.IsBlock() {
		is, err = l.mapDevice(ctx, s, found)
	} else {
		is, err = l.mount(ctx, s, found)
	}
	return is, false, err
}

func (l *localVolumes) globalMap(pv string) string { return l.mapping("", pv).Volume }

func (l *localVolumes) grow(ctx context.Context, _ *Spec, found *cluster.ClaimedVolume, at string,
	_ resource.Quantity) error {
	if found.IsBlock() {
		return nil // there is nothing in it
	}
	call := growCall{Source: found.PV.Spec.Local.Path, Dir: at}
	_, err := growLocal.Do(ctx, l.foreign, call.Dir, call)
	return err
}

func (l *localVolumes) mount(ctx context.Context, s *Spec, found *cluster.ClaimedVolume) (Mounted, error) {
	pv := found.PV
	dir := filepath.Join(l.mounted(s.Pod.UID), pv.Name)
	call := localCall{
		Path: pv.Spec.Local.Path, Global: l.global(pv.Name), FSType: localFSType, Dir: dir, Pods: l.pods(),
		ReadOnly: found.ReadOnly, Options: pv.Spec.MountOptions, Group: fsGroup(s.Pod),
		OnRootMismatch: onRootMismatch(s.Pod), Private: l.private(s.Pod),
	}
	if pv.Spec.Local.FSType != nil {
		call.FSType = *pv.Spec.Local.FSType
	}
	giving, done := l.events.giving(ctx, s.Pod, dir)
	state, err := mountLocal.Do(giving, l.foreign, call.Global, call)
	done()
	if state.Step != "" {
		err = &Error{Step: state.Step, Err: err}
	}
	state.Refused.log(l.log, dir)
	if err == nil && state.OtherGroup != nil {
		l.events.otherGroup(s.Pod, pv.Name, *state.OtherGroup)
	}
	// As with the kubelet, the files of a read-only volume keep their labels: no container can change them.
	return Mounted{HostPath: dir, ReadOnly: found.ReadOnly, SELinuxRelabel: !found.ReadOnly}, err
}

func (l *localVolumes) mapDevice(ctx context.Context, s *Spec, found *cluster.ClaimedVolume) (Mounted, error) {
	pv := found.PV
	m := l.mapping(s.Pod.UID, pv.Name)
	m.Device = pv.Spec.Local.Path
	if climbs(m.Device) {
		return Mounted{}, fmt.Errorf("invalid path: %s must not contain '..'", m.Device)
	}
	state, err := Devices{l.foreign}.mapUnless(ctx, m, l.private(s.Pod))
	if err != nil {
		return Mounted{}, &Error{Step: state.Step(), Err: err}
	}
	return Mounted{Device: m.Link, ReadOnly: found.ReadOnly}, nil
}

// release takes all its local volumes from a pod, also those that other processes have given. A failure of one does not
// keep the others.
func (l *localVolumes) release(ctx context.Context, pod types.UID) error {
	mapped, err := blockdevice.Volumes(l.links(pod), l.devices(), func(pv string) bool {
		m := l.mapping(pod, pv)
		return m.Exists()
	})
	mounted, e := os.ReadDir(l.mounted(pod))
	if errors.Is(e, fs.ErrNotExist) {
		e = nil
	}
	var tasks []func() error
	for _, pv := range mapped {
		tasks = append(tasks, func() error { return l.unmap(ctx, pod, pv) })
	}
	for _, pv := range mounted {
		tasks = append(tasks, func() error { return l.unmount(ctx, pod, pv.Name()) })
	}
	return errors.Join(err, e, atOnce(tasks...))
}

func (l *localVolumes) unmap(ctx context.Context, pod types.UID, pv string) error {
	m := l.mapping(pod, pv)
	if err := (Devices{l.foreign}).Unmap(ctx, m); err != nil {
		return fmt.Errorf("UnmapVolume.UnmapBlockVolume failed for volume %q : %w", pv, err)
	}
	return m.Unlink()
}

func (l *localVolumes) unmount(ctx context.Context, pod types.UID, pv string) error {
	c := localRelease{Dir: filepath.Join(l.mounted(pod), pv), Pods: l.pods(), Global: l.global(pv)}
	err := l.subPaths.Unmount(ctx, pod, c.Dir)
	if err == nil {
		_, err = unmountLocal.Do(ctx, l.foreign, c.Global, c)
	}
	if err != nil {
		return fmt.Errorf("UnmountVolume.TearDown failed for volume %q : %w", pv, err)
	}
	return nil
}

// localRelease asks for a local volume to be unmounted for a pod.
type localRelease struct {
	// Dir, Pods and Global are those of localCall.
	Dir, Pods, Global string
}

// releaseLocal unmounts the volume for the pod, and with the last pod the device. The pod's folder goes last: if the
// call is killed before, the next attempt finds the folder.
func (k *kernel) releaseLocal(c *localRelease) error {
	dir, err := withoutLinks(c.Dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if err := k.unmountAll(dir); err != nil {
		return err
	}
	shared, err := c.isShared()
	if err != nil {
		return err
	}
	if !shared {
		if err := k.releaseDevice(c.Global); err != nil {
			return err
		}
	}
	return removeFolder(dir)
}

// isShared reports whether another pod has the volume.
func (c *localRelease) isShared() (bool, error) {
	pods, err := os.ReadDir(c.Pods)
	if err != nil {
		return false, err
	}
	own, pv := filepath.Base(filepath.Dir(filepath.Dir(filepath.Dir(c.Dir)))), filepath.Base(c.Dir)
	return slices.ContainsFunc(pods, func(pod fs.DirEntry) bool {
		_, err := os.Lstat(filepath.Join(c.Pods, pod.Name(), "volumes", localName, pv))
		return pod.Name() != own && !errors.Is(err, fs.ErrNotExist)
	}), nil
}

func (k *kernel) releaseDevice(global string) error {
	global, err := withoutLinks(global)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if err := k.unmountAll(global); err != nil {
		return err
	}
	return removeFolder(global)
}

// unmountAll unmounts all that is mounted at a path, which has no symbolic links.
func (k *kernel) unmountAll(path string) error {
	for {
		switch err := k.unmount(path, 0); {
		case errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOENT):
			return nil // nothing is mounted, or nothing any more
		case err != nil:
			return fmt.Errorf("unmount %s: %w", path, err)
		}
	}
}

// removeFolder removes a folder that should be empty. One that is not stays.
func removeFolder(path string) error {
	if err := unix.Rmdir(path); err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("remove %s: %w", path, err)
	}
	return nil
}
