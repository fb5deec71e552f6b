package volumes

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"github.com/microlet/microlet/services/internal/podutil"
)

// files are the kinds whose content comes from the API: projected, secret, configMap and
// downwardAPI.
type files struct {
	m    *Manager
	name string
	// inMemory keeps the files off the disk.
	inMemory bool
	handles  func(v *v1.Volume) bool
	collect  func(ctx context.Context, s *Spec, into *gathering) error
}

func (f *files) Name() string { return f.name }

func (f *files) Handles(v *v1.Volume) bool { return f.handles(v) }

func (f *files) Refreshes(*Spec) bool { return true }

// Check fetches what SetUp then finds in the caches.
func (f *files) Check(ctx context.Context, s *Spec) error {
	_, err := f.gather(ctx, s)
	return err
}

// gather collects the files, and refuses the volume while they are collected if they take more than they may.
func (f *files) gather(ctx context.Context, s *Spec) (map[string]file, error) {
	taken, name := f.m.taken, s.Volume.Name
	before := taken.of(s.Pod.UID, name)
	g := &gathering{files: map[string]file{}, fits: func(bytes int64) error {
		return taken.set(s.Pod, name, volumeSize{bytes, f.inMemory})
	}}
	err := g.addMountPoints(s.Pod, name)
	if err == nil {
		err = f.collect(ctx, s, g)
	}
	if err != nil {
		taken.put(s.Pod.UID, name, before)
		return nil, err
	}
	return g.files, nil
}

func (f *files) Existing(s *Spec) (Mounted, bool) {
	if f.inMemory && !isMountPoint(f.m.memory.mounter, s.Dir) {
		return Mounted{}, false
	}
	// The files on the disk are those of the boot before. They may be empty after a power cut, or long out of date.
	if !f.inMemory && !f.mark(s).by(f.m.opts.BootID) {
		return Mounted{}, false
	}
	_, err := os.Stat(filepath.Join(s.Dir, dataLink))
	return f.mounted(s), err == nil
}

func (f *files) mark(s *Spec) ready { return s.ready("wrapped_" + s.Volume.Name) }

func (f *files) mounted(s *Spec) Mounted {
	return Mounted{HostPath: s.Dir, ReadOnly: true, SELinuxRelabel: true}
}

func (f *files) SetUp(ctx context.Context, s *Spec) (Mounted, error) {
	content, err := f.gather(ctx, s)
	if err != nil {
		return Mounted{}, err
	}
	return f.mounted(s), f.m.calls.do(ctx, s.Dir, func() error {
		if err := context.Cause(ctx); err != nil {
			return err // the pod may be ending, which removes the folder
		}
		return f.write(s, content)
	})
}

// write makes the volume's folder unless it is there, and writes the files.
func (f *files) write(s *Spec, content map[string]file) error {
	mark := f.mark(s)
	if _, err := os.Lstat(s.Dir); err != nil || !mark.is() {
		if err := makeOpen(s.Dir); err != nil {
			return err
		}
	}
	if f.inMemory {
		if err := f.m.memory.tmpfs(s.Pod, nil).mount(f.m.memory.mounter, s.Dir); err != nil {
			return err
		}
	}
	if !mark.is() {
		if err := mark.set(); err != nil {
			return err
		}
	}
	if err := nestedMountPoints(s.Pod, s.Volume.Name, s.Dir); err != nil {
		return err
	}
	// The whole volume: what is made in its folder from then on, such as links, inherits the group.
	if err := writeAtomically(s.Dir, content,
		func() error { return giveToGroup(s.Dir, fsGroup(s.Pod), groupReads) }); err != nil {
		return err
	}
	return mark.setBy(f.m.opts.BootID) // last: now the files are this boot's
}

// nestedMountPoints makes the folders on which containers mount other volumes inside of
// this one, which is read-only to them.
func nestedMountPoints(p *v1.Pod, name, dir string) error {
	var mounts [][]v1.VolumeMount
	for c := range podutil.AllContainers(&p.Spec) {
		mounts = append(mounts, c.VolumeMounts)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }() // only folders were made
	for _, ofOne := range mounts {
		for below := range nested(ofOne, name) {
			if err := root.MkdirAll(below, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
				return fmt.Errorf("unable to create nested volume mountpoints: %w", err)
			}
		}
	}
	return nil
}

// nested yields where in a volume a container mounts others. A container may have tens of thousands of mounts, so the
// paths above each are looked up, and not all mounts compared.
func nested(mounts []v1.VolumeMount, name string) iter.Seq[string] {
	outer := map[string]bool{}
	for i := range mounts {
		if mounts[i].Name == name {
			outer[filepath.Clean(mounts[i].MountPath)] = true
		}
	}
	return func(yield func(string) bool) {
		for i := range mounts {
			if len(outer) == 0 || len(mounts[i].MountPath) > unix.PathMax {
				continue // the kernel mounts nothing there
			}
			path := filepath.Clean(mounts[i].MountPath)
			for at := strings.LastIndexByte(path, '/'); at > 0; at = strings.LastIndexByte(path[:at], '/') {
				if outer[path[:at]] && !yield(path[at+1:]) {
					return
				}
			}
		}
	}
}
