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

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	mount "k8s.io/mount-utils"
)

// localCall asks for a folder of the node to be mounted for a pod (a PersistentVolume with spec.local).
type localCall struct {
	Path string
	// Dir is where it is mounted, in Pods, the folder of all pods.
	Dir, Pods string
	ReadOnly  bool
	Options   []string
	// Group is the pod's fsGroup. OnRootMismatch gives nothing to it if the folder itself is right already.
	Group          *int64
	OnRootMismatch bool
	// Private is the folder that the path must not be in; empty is none.
	Private string
}

// localState says why there is none.
type localState struct {
	// Missing: the path does not exist.
	Missing bool
}

func (c *localCall) do(m mount.Interface) (localState, error) {
	if climbs(c.Path) {
		return localState{}, fmt.Errorf("invalid path: %s must not contain '..'", c.Path)
	}
	if err := reaches(c.Private, c.Path); err != nil {
		return localState{}, err
	}
	info, err := os.Stat(c.Path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return localState{Missing: true}, fmt.Errorf("path %q does not exist", c.Path)
	case err != nil:
		return localState{}, err
	case !info.IsDir():
		return localState{}, fmt.Errorf("path %q is no folder, and file systems on block devices are not built", c.Path)
	}
	return localState{}, c.give(m, info)
}

// give mounts the folder and gives it to the pod's group.
func (c *localCall) give(m mount.Interface, info fs.FileInfo) error {
	others, err := c.others(m)
	if err != nil {
		return err
	}
	if err := c.mount(m); err != nil {
		return err
	}
	// Who has it already has it as it is: its group stays.
	if c.ReadOnly || len(others) > 0 || c.OnRootMismatch && belongs(info, c.Group) {
		return nil
	}
	if err := giveToGroup(c.Dir, c.Group, groupWrites); err != nil {
		return fmt.Errorf("give the volume to the pod's fsGroup: %w", err)
	}
	return nil
}

// others are the mounts of the same folder for other pods.
func (c *localCall) others(m mount.Interface) ([]string, error) {
	refs, err := m.GetMountRefs(c.Path)
	return slices.DeleteFunc(refs, func(path string) bool {
		return path == c.Dir || !strings.HasPrefix(path, c.Pods+"/")
	}), err
}

// mount binds the folder to its place, unless a call that was killed has done so.
func (c *localCall) mount(m mount.Interface) error {
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
	return m.MountSensitiveWithoutSystemd(c.Path, c.Dir, "", append(options, c.Options...), nil)
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

// validName keeps the name of a PersistentVolume, which the API server has checked, from being a path.
func validName(name string) error {
	if filepath.Base(name) != name || len(validation.IsDNS1123Subdomain(name)) > 0 {
		return fmt.Errorf("PersistentVolume %q cannot be the name of a folder", name)
	}
	return nil
}
