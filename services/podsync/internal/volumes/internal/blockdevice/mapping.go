package blockdevice

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"
)

// Mapping is a block device that a pod has, or is to have.
type Mapping struct {
	// Device is the device's file, or a link to it. Unmap does not need it.
	Device string
	// Volume is the folder of the volume's bind mounts, in which each pod has a file.
	Volume string
	Pod    types.UID
	// Link is the link in the pod's folder.
	Link string
}

// State says why there is no mapping.
type State struct {
	// Missing: the device is not there.
	Missing bool
}

// Step names what has failed as the kubelet does.
func (s State) Step() string {
	if s.Missing {
		return "MapVolume.EvalHostSymlinks failed"
	}
	return "MapVolume.MapBlockVolume failed"
}

// Map maps the device for the pod. Of what is there already it keeps what is right.
func (m *Mapping) Map() (State, error) {
	device, err := filepath.EvalSymlinks(m.Device)
	if err != nil {
		return State{Missing: errors.Is(err, fs.ErrNotExist)}, err
	}
	for _, step := range m.steps(device) {
		if err := step(); err != nil {
			return State{}, err
		}
	}
	return State{}, nil
}

func (m *Mapping) steps(device string) []func() error {
	return []func() error{
		func() error { return m.bind(device) },
		func() error { return m.link(device) },
		func() error { return attach(m.file()) },
	}
}

// file is where the device is bound for the pod.
func (m *Mapping) file() string { return filepath.Join(m.Volume, string(m.Pod)) }

// bind binds the device's file to the pod's.
func (m *Mapping) bind(device string) error {
	// A descriptor for the path alone does not open the device, and stays with what was looked at.
	source, err := unix.Open(device, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open %s: %w", device, err)
	}
	defer func() { _ = unix.Close(source) }()
	var wanted unix.Stat_t
	if err := unix.Fstat(source, &wanted); err != nil {
		return fmt.Errorf("stat %s: %w", device, err)
	}
	if wanted.Mode&unix.S_IFMT != unix.S_IFBLK {
		return fmt.Errorf("%s is no block device", device)
	}
	if err := os.MkdirAll(m.Volume, 0o750); err != nil {
		return err
	}
	file := m.file()
	var there unix.Stat_t
	switch err := unix.Lstat(file, &there); {
	case errors.Is(err, unix.ENOENT):
		if err := os.WriteFile(file, nil, 0o600); err != nil {
			return err
		}
	case err != nil:
		return fmt.Errorf("stat %s: %w", file, err)
	case there.Mode&unix.S_IFMT == unix.S_IFBLK && there.Rdev == wanted.Rdev:
		return nil
	case there.Mode&unix.S_IFMT == unix.S_IFBLK:
		// The volume has been another device.
		if err := errors.Join(detach(file), unmount(file)); err != nil {
			return err
		}
	}
	if err := unix.Mount(fmt.Sprintf("/proc/self/fd/%d", source), file, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("bind %s to %s: %w", device, file, err)
	}
	return nil
}

// link has the pod's link lead to the device. After the node's restart it may lead to another.
func (m *Mapping) link(device string) error {
	if to, err := os.Readlink(m.Link); err == nil && to == device {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(m.Link), 0o750); err != nil {
		return err
	}
	if err := remove(m.Link); err != nil {
		return err
	}
	return os.Symlink(device, m.Link)
}

// Unmap undoes a mapping except for the link. The link shows that there is something to undo until the caller has
// undone all. A mapping that is not there is undone. The folder of the volume goes with its last pod.
func (m *Mapping) Unmap() error {
	for _, step := range m.backSteps() {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

func (m *Mapping) backSteps() []func() error {
	return []func() error{
		func() error { return detach(m.file()) },
		func() error { return unmount(m.file()) },
		func() error { return remove(m.file()) },
		func() error {
			// One that is not empty is another pod's too.
			if err := unix.Rmdir(m.Volume); !errors.Is(err, unix.ENOTEMPTY) && !errors.Is(err, unix.ENOENT) {
				return err
			}
			return nil
		},
	}
}

// unmount unmounts all that is bound to a file.
func unmount(file string) error {
	for {
		switch err := unix.Unmount(file, unix.UMOUNT_NOFOLLOW); {
		case errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOENT):
			return nil // nothing is mounted, or nothing any more
		case err != nil:
			return fmt.Errorf("unmount %s: %w", file, err)
		}
	}
}

func remove(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// Unlink removes the pod's link, the last trace of the mapping.
func (m *Mapping) Unlink() error { return remove(m.Link) }

// Exists reports whether anything of the mapping but the link is there.
func (m *Mapping) Exists() bool {
	_, err := os.Lstat(m.file())
	return err == nil
}

// Volumes lists the volumes that a pod has, wholly or in part: those of its links, and those in the folder of all
// volumes that has says it has.
func Volumes(links, all string, has func(volume string) bool) ([]string, error) {
	found := map[string]bool{}
	entries, err := readDir(links)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		found[e.Name()] = true
	}
	if entries, err = readDir(all); err != nil {
		return nil, err
	}
	for _, e := range entries {
		if has(e.Name()) {
			found[e.Name()] = true
		}
	}
	return slices.Sorted(maps.Keys(found)), nil
}

// readDir lists a folder. One that is not there is empty.
func readDir(dir string) ([]fs.DirEntry, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return entries, err
}
