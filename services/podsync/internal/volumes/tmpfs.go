package volumes

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	mount "k8s.io/mount-utils"

	"github.com/microlet/microlet/services/internal/podutil"
)

// memory mounts the file systems that volumes have in memory.
type memory struct {
	mounter     mount.Interface
	allocatable func() v1.ResourceList
	// scratch is a folder in which a mount can be tried.
	scratch string

	once   sync.Once
	noswap bool
}

// fileSystem is one to be mounted.
type fileSystem struct {
	Device, Type string
	Options      []string
}

// mount mounts it at dir unless something is mounted there.
func (f *fileSystem) mount(m mount.Interface, dir string) error {
	mounted, err := m.IsMountPoint(dir)
	if err != nil {
		return fmt.Errorf("is it mounted: %w", err)
	}
	if mounted {
		return nil
	}
	if err := m.MountSensitiveWithoutSystemd(f.Device, dir, f.Type, f.Options, nil); err != nil {
		return fmt.Errorf("mount %s: %w", f.Type, err)
	}
	return nil
}

// tmpfs is a file system in memory. limit is the volume's own, or nil.
func (m *memory) tmpfs(p *v1.Pod, limit *resource.Quantity) *fileSystem {
	var options []string
	if size := tmpfsSize(p, m.allocatable(), limit); size > 0 {
		options = append(options, "size="+strconv.FormatInt(size, 10))
	}
	if m.noSwap() {
		options = append(options, "noswap")
	}
	return &fileSystem{Device: "tmpfs", Type: "tmpfs", Options: options}
}

// tmpfsSize is what the node's pods may use all together, or the pod's own limit, or the
// volume's: the least of them. The memory is charged to the pod only where a container
// touches it.
func tmpfsSize(p *v1.Pod, allocatable v1.ResourceList, volume *resource.Quantity) int64 {
	size := allocatable.Memory().Value()
	lower := func(limit int64) {
		if limit > 0 && (limit <= size || size <= 0) {
			size = limit
		}
	}
	lower(memoryLimit(p))
	if volume != nil {
		lower(volume.Value())
	}
	return size
}

// memoryLimited reports whether the pod as a whole has a limit: its own, or one in each container.
func memoryLimited(p *v1.Pod) bool {
	if p.Spec.Resources != nil && !p.Spec.Resources.Limits.Memory().IsZero() {
		return true
	}
	for c := range podutil.Containers(&p.Spec) {
		if c.Resources.Limits.Memory().IsZero() {
			return false
		}
	}
	return true
}

// noSwap reports whether the kernel can keep a tmpfs out of swap, where a secret would reach the
// disk. Only trying shows it: kernels were given the option in patches too.
func (m *memory) noSwap() bool {
	m.once.Do(func() {
		if err := os.MkdirAll(m.scratch, 0o750); err != nil {
			return
		}
		dir, err := os.MkdirTemp(m.scratch, "tmpfs-noswap-test-")
		if err != nil {
			return
		}
		defer func() { _ = os.Remove(dir) }() // an empty folder that is left does no harm
		if m.mounter.MountSensitiveWithoutSystemd("tmpfs", dir, "tmpfs", []string{"noswap"}, nil) == nil {
			m.noswap = m.mounter.Unmount(dir) == nil
		}
	})
	return m.noswap
}

// KeepsOutOfSwap reports whether what volumes have in memory never reaches the disk.
func (m *Manager) KeepsOutOfSwap() bool { return m.memory.noSwap() }

// hugePages is a file system of huge pages.
func hugePages(p *v1.Pod, medium v1.StorageMedium) (*fileSystem, error) {
	size, err := pageSize(p, medium)
	if err != nil {
		return nil, err
	}
	return &fileSystem{Device: "nodev", Type: "hugetlbfs", Options: []string{"pagesize=" + size.String()}}, nil
}

// pageSize is the size that the medium names, if the pod asks for such pages, or the only one
// that the pod asks for.
func pageSize(p *v1.Pod, medium v1.StorageMedium) (resource.Quantity, error) {
	var named *resource.Quantity
	if suffix, ok := strings.CutPrefix(string(medium), string(v1.StorageMediumHugePagesPrefix)); ok {
		size, err := resource.ParseQuantity(suffix)
		if err != nil {
			return size, fmt.Errorf("emptyDir.medium %s: %w", medium, err)
		}
		named = &size
	}
	var found *resource.Quantity
	for _, requests := range requestsOf(p) {
		for name := range requests {
			suffix, ok := strings.CutPrefix(string(name), v1.ResourceHugePagesPrefix)
			if !ok {
				continue
			}
			size, err := resource.ParseQuantity(suffix)
			if err != nil {
				return size, fmt.Errorf("resource %s: %w", name, err)
			}
			if named != nil && size.Cmp(*named) != 0 {
				continue
			}
			if found != nil && found.Cmp(size) != 0 {
				return size, fmt.Errorf("medium: %s can't be used if container requests multiple huge page sizes",
					medium)
			}
			found = &size
		}
	}
	if found == nil {
		return resource.Quantity{},
			fmt.Errorf("medium %s: hugePages storage requested, but there is no resource request for huge pages",
				medium)
	}
	return *found, nil
}

func requestsOf(p *v1.Pod) []v1.ResourceList {
	var all []v1.ResourceList
	if p.Spec.Resources != nil {
		all = append(all, p.Spec.Resources.Requests)
	}
	for c := range podutil.Containers(&p.Spec) {
		all = append(all, c.Resources.Requests)
	}
	return all
}

// makeOpen makes a folder that every user of the pod's containers may use, whatever the umask.
func makeOpen(dir string) error {
	if err := os.MkdirAll(filepath.Dir(dir), 0o750); err != nil {
		return err
	}
	if err := os.Mkdir(dir, 0o777); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	info, err := os.Lstat(dir)
	if err != nil || info.Mode().Perm() == 0o777 {
		return err
	}
	return os.Chmod(dir, 0o777)
}
