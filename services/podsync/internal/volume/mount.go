package volume

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	v1 "k8s.io/api/core/v1"
	resourcehelper "k8s.io/component-helpers/resource"
)

// project mounts the volume's memory file system unless it is there, and writes the files.
func (m *Manager) project(p *v1.Pod, name, dir string, files map[string]file) error {
	if err := m.mountTmpfs(p, dir); err != nil {
		return err
	}
	if err := nestedMountPoints(p, name, dir); err != nil {
		return err
	}
	group := fsGroup(p)
	if err := writeAtomically(dir, files, func(version string) error { return giveToGroup(version, group) }); err != nil {
		return err
	}
	return giveFolderToGroup(dir, group)
}

// mountTmpfs keeps what projected volumes hold off the disk.
func (m *Manager) mountTmpfs(p *v1.Pod, dir string) error {
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return err
	}
	mounted, err := m.opts.Mounter.IsMountPoint(dir)
	if err != nil {
		return fmt.Errorf("is it mounted: %w", err)
	}
	if mounted {
		return nil
	}
	if err := os.Chmod(dir, 0o777); err != nil {
		return err
	}
	if err := m.opts.Mounter.MountSensitiveWithoutSystemd("tmpfs", dir, "tmpfs", m.tmpfsOptions(p), nil); err != nil {
		return fmt.Errorf("mount tmpfs: %w", err)
	}
	return nil
}

// tmpfsOptions bound the file system by what the pod may use, or else the node's pods
// all together: the memory is charged to the pod only where a container touches it.
func (m *Manager) tmpfsOptions(p *v1.Pod) []string {
	allocatable := m.opts.Allocatable()
	limit := allocatable.Memory().Value()
	if memory, ok := resourcehelper.PodLimits(p, resourcehelper.PodResourcesOptions{})[v1.ResourceMemory]; ok && everyContainerLimited(p) {
		limit = min(limit, memory.Value())
	}
	if limit <= 0 {
		return nil
	}
	return []string{"size=" + strconv.FormatInt(limit, 10)}
}

func everyContainerLimited(p *v1.Pod) bool {
	return !slices.ContainsFunc(p.Spec.Containers, func(c v1.Container) bool {
		return c.Resources.Limits.Memory().IsZero()
	})
}

// nestedMountPoints makes the folders on which containers mount other volumes inside of
// this one, which is read-only to them.
func nestedMountPoints(p *v1.Pod, name, dir string) error {
	for i := range p.Spec.Containers {
		mounts := p.Spec.Containers[i].VolumeMounts
		for _, outer := range mounts {
			if outer.Name != name {
				continue
			}
			for _, inner := range mounts {
				below, ok := strings.CutPrefix(filepath.Clean(inner.MountPath), filepath.Clean(outer.MountPath)+"/")
				if !ok {
					continue
				}
				if err := os.MkdirAll(filepath.Join(dir, below), 0o755); err != nil {
					return fmt.Errorf("mount point for volume %s: %w", inner.Name, err)
				}
			}
		}
	}
	return nil
}

// giveToGroup lets the pod's fsGroup read what is in dir.
func giveToGroup(dir string, group *int64) error {
	if group == nil {
		return nil
	}
	return filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return giveOne(path, d, *group)
	})
}

func giveFolderToGroup(dir string, group *int64) error {
	if group == nil {
		return nil
	}
	info, err := os.Lstat(dir)
	if err != nil {
		return err
	}
	return giveOne(dir, fs.FileInfoToDirEntry(info), *group)
}

func giveOne(path string, d fs.DirEntry, group int64) error {
	if err := os.Lchown(path, -1, int(group)); err != nil {
		return err
	}
	if d.Type()&fs.ModeSymlink != 0 {
		return nil
	}
	info, err := d.Info()
	if err != nil {
		return err
	}
	mode := info.Mode() | 0o440
	if d.IsDir() {
		mode |= 0o110 | fs.ModeSetgid
	}
	return os.Chmod(path, mode)
}
