package volume

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"k8s.io/apimachinery/pkg/types"
)

// remove unmounts all below a pod's folder, whoever mounted it, and removes the folder. A
// folder that is not there is success; as long as something is mounted nothing is removed.
func (m *Manager) remove(dir string) error {
	// The kernel lists mounts without symbolic links: compared with the path as it was given,
	// none would be found, and what is mounted would be removed with the folder.
	dir, err := filepath.EvalSymlinks(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	mounts, err := m.mountsBelow(dir)
	if err != nil {
		return err
	}
	for _, path := range mounts {
		if err := m.opts.Mounter.Unmount(path); err != nil {
			return fmt.Errorf("unmount %s: %w", path, err)
		}
	}
	if mounts, err = m.mountsBelow(dir); err != nil {
		return err
	}
	if len(mounts) > 0 {
		return fmt.Errorf("%s is still mounted", mounts[0])
	}
	info, err := os.Lstat(dir)
	if err != nil {
		return err
	}
	return removeOnDevice(dir, deviceOf(info))
}

// mountEscapes are how the kernel writes what would end a field of its list.
var mountEscapes = strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\043`, "#", `\134`, `\`)

// mountsBelow lists the mount points in dir, the deepest first, of two at one place the
// one on top.
func (m *Manager) mountsBelow(dir string) ([]string, error) {
	found, err := m.opts.Mounter.List()
	if err != nil {
		return nil, fmt.Errorf("list mounts: %w", err)
	}
	var paths []string
	for i := range found {
		if path := mountEscapes.Replace(found[i].Path); strings.HasPrefix(path, dir+"/") {
			paths = append(paths, path)
		}
	}
	slices.Reverse(paths)
	slices.SortStableFunc(paths, func(a, b string) int { return strings.Count(b, "/") - strings.Count(a, "/") })
	return paths, nil
}

// removeOnDevice removes a tree and stops at anything of another file system: a mount that
// appeared in between must not lose what it holds.
func removeOnDevice(path string, device uint64) error {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if deviceOf(info) != device {
		return fmt.Errorf("%s is on another file system: not removed", path)
	}
	if info.IsDir() {
		entries, err := os.ReadDir(path)
		if err != nil {
			return err
		}
		for _, e := range entries {
			if err := removeOnDevice(filepath.Join(path, e.Name()), device); err != nil {
				return err
			}
		}
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

func deviceOf(info fs.FileInfo) uint64 {
	return info.Sys().(*syscall.Stat_t).Dev
}

// validUID keeps a pod's UID, which a manifest may bring, from being a path.
func validUID(uid types.UID) error {
	if uid == "" || strings.HasPrefix(string(uid), ".") || strings.ContainsAny(string(uid), "/\x00") {
		return fmt.Errorf("metadata.uid %q cannot be the name of a folder: leave it out or use a UUID", uid)
	}
	return nil
}
