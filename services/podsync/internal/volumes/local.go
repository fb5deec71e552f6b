package volumes

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	mount "k8s.io/mount-utils"
	"k8s.io/utils/exec"
)

// localCall asks for a folder of the node, or the file system on a block device of it, to be mounted for a pod (a
// PersistentVolume with spec.local).
type localCall struct {
	Path string
	// Global is where a device is mounted for all pods. On one without a file system, one of FSType is made.
	Global, FSType string
	// Dir is where the volume is mounted for the pod, in Pods, the folder of all pods.
	Dir, Pods string
	ReadOnly  bool
	Options   []string
	// Group is the pod's fsGroup. OnRootMismatch gives nothing to it if the folder itself is right already.
	Group          *int64
	OnRootMismatch bool
	// Private is the folder that the path must not be in; empty is none.
	Private string
}

// localState is the result: the mounted volume, or the step that has failed.
type localState struct {
	// Step has failed. Default: stepSetUp.
	Step string
	// OtherGroup is the group of a folder that keeps it, because other pods have the volume. Nil if it is the pod's.
	OtherGroup *uint32
	// Refused are the files that were not given to the pod's group.
	Refused refusals
}

func (c *localCall) do(ctx context.Context, m mount.Interface) (localState, error) {
	if climbs(c.Path) {
		return localState{}, fmt.Errorf("invalid path: %s must not contain '..'", c.Path)
	}
	if err := errors.Join(checkWord("local.path", c.Path), checkWord("local.fsType", c.FSType)); err != nil {
		return localState{}, err
	}
	if strings.Contains(c.FSType, "/") {
		return localState{}, fmt.Errorf("local.fsType %q must be the name of a file system, such as ext4", c.FSType)
	}
	if err := reaches(c.Private, c.Path); err != nil {
		return localState{}, err
	}
	info, err := os.Stat(c.Path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return localState{Step: stepNewMounter}, fmt.Errorf("path %q does not exist", c.Path)
	case err != nil:
		return localState{}, err
	case info.IsDir():
		return c.give(ctx, m, c.Path)
	case info.Mode()&(fs.ModeDevice|fs.ModeCharDevice) != fs.ModeDevice:
		return localState{Step: stepNewMounter}, errors.New("only directory and block device are supported")
	}
	if err := c.mountDevice(m); err != nil {
		return localState{Step: stepMountDevice}, fmt.Errorf("local: failed to mount device %s at %s (fstype: %s), error %w",
			c.Path, c.Global, c.FSType, err)
	}
	return c.give(ctx, m, c.Global)
}

// mountDevice mounts the file system on the device, which it makes if there is none. A mkfs whose caller was killed
// goes on; it has the device for itself, and until it ends another one fails.
func (c *localCall) mountDevice(m mount.Interface) error {
	if err := os.MkdirAll(c.Global, 0o750); err != nil {
		return err
	}
	mounted, err := m.IsMountPoint(c.Global)
	if err != nil || mounted {
		return err
	}
	options := slices.Clone(c.Options)
	if c.ReadOnly {
		options = append(options, "ro")
	}
	err = mount.NewSafeFormatAndMount(m, exec.New()).FormatAndMount(c.Path, c.Global, c.FSType, options)
	if err != nil {
		_ = unix.Rmdir(c.Global) // the next attempt makes it again
	}
	return err
}

// give mounts a folder for the pod and gives it to the pod's group.
func (c *localCall) give(ctx context.Context, m mount.Interface, folder string) (state localState, err error) {
	info, err := os.Stat(folder)
	if err != nil {
		return state, err
	}
	others, err := c.others(m, folder)
	if err != nil {
		return state, err
	}
	if err := c.mount(m, folder); err != nil {
		return state, err
	}
	if len(others) > 0 {
		return localState{OtherGroup: c.otherGroup(info)}, nil // those pods have the volume as it is: its group stays
	}
	if c.ReadOnly || c.OnRootMismatch && belongs(info, c.Group) {
		return state, nil
	}
	if state.Refused, err = giveVolumeToGroup(ctx, c.Dir, c.Group, groupWrites); err != nil {
		return state, fmt.Errorf("give the volume to the pod's fsGroup: %w", err)
	}
	return state, nil
}

// otherGroup is the group of a folder, if that of the pod is another one.
func (c *localCall) otherGroup(dir fs.FileInfo) *uint32 {
	stat, ok := dir.Sys().(*syscall.Stat_t)
	if !ok || c.Group == nil || int64(stat.Gid) == *c.Group {
		return nil
	}
	return &stat.Gid
}

// others are the mounts of the same folder for other pods.
func (c *localCall) others(m mount.Interface, folder string) ([]string, error) {
	refs, err := m.GetMountRefs(folder)
	return slices.DeleteFunc(refs, func(path string) bool {
		return path == c.Dir || !strings.HasPrefix(path, c.Pods+"/")
	}), err
}

// mount binds the folder to its place, unless a call that was killed has done so.
func (c *localCall) mount(m mount.Interface, folder string) error {
	if err := os.MkdirAll(c.Dir, 0o750); err != nil {
		return err
	}
	mounted, err := m.IsMountPoint(c.Dir)
	if err != nil || mounted {
		return err
	}
	options := []string{"bind"}
	if c.ReadOnly {
		options = append(options, "ro")
	}
	return m.MountSensitiveWithoutSystemd(folder, c.Dir, "", append(options, c.Options...), nil)
}

// belongs reports whether a folder is the group's as giveToGroup leaves it.
func belongs(dir fs.FileInfo, group *int64) bool {
	stat, ok := dir.Sys().(*syscall.Stat_t)
	const mode = groupWrites | 0o110
	return ok && group != nil && int64(stat.Gid) == *group && dir.Mode()&mode == mode && dir.Mode()&fs.ModeSetgid != 0
}

func onRootMismatch(p *v1.Pod) bool {
	return p.Spec.SecurityContext != nil && p.Spec.SecurityContext.FSGroupChangePolicy != nil &&
		*p.Spec.SecurityContext.FSGroupChangePolicy == v1.FSGroupChangeOnRootMismatch
}

// climbs reports whether a path leads up.
func climbs(path string) bool { return slices.Contains(strings.Split(path, "/"), "..") }

// checkWord refuses what cannot be the name of a source, a device or a kind of file system.
func checkWord(field, word string) error {
	if strings.HasPrefix(word, "-") || strings.ContainsRune(word, 0) {
		return fmt.Errorf("%s %q must not begin with '-' or have a null byte", field, word)
	}
	return nil
}

// validName keeps the name of a PersistentVolume, which the API server has checked, from being a path.
func validName(name string) error {
	if filepath.Base(name) != name || len(validation.IsDNS1123Subdomain(name)) > 0 {
		return fmt.Errorf("PersistentVolume %q cannot be the name of a folder", name)
	}
	return nil
}
