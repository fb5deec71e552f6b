package volumes

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	mount "k8s.io/mount-utils"

	"github.com/microlet/microlet/services/internal/childpool"
)

const emptyDirName = "kubernetes.io~empty-dir"

// emptyDir is a folder that lives as long as its pod: on disk, in memory or of huge pages.
type emptyDir struct {
	memory  *memory
	foreign childpool.Runner
}

func (e *emptyDir) Name() string { return emptyDirName }

func (e *emptyDir) Handles(v *v1.Volume) bool { return v.EmptyDir != nil }

func (e *emptyDir) Refreshes(*Spec) bool { return false }

func (e *emptyDir) Check(_ context.Context, s *Spec) error {
	switch medium := s.Volume.EmptyDir.Medium; {
	case medium == v1.StorageMediumDefault, medium == v1.StorageMediumMemory:
		return nil
	case isHugePages(medium):
		_, err := pageSize(s.Pod, medium)
		return err
	default:
		return fmt.Errorf("unknown storage medium %q", medium)
	}
}

func isHugePages(medium v1.StorageMedium) bool {
	return medium == v1.StorageMediumHugePages ||
		strings.HasPrefix(string(medium), string(v1.StorageMediumHugePagesPrefix))
}

func (e *emptyDir) Existing(s *Spec) (Mounted, bool) {
	if !s.ready(s.Volume.Name).is() {
		return Mounted{}, false
	}
	there := Mounted{HostPath: s.Dir, SELinuxRelabel: true}
	if s.Volume.EmptyDir.Medium == v1.StorageMediumDefault {
		return there, isListed(s.Dir)
	}
	// The mark is on disk and outlives a reboot, what is in memory does not.
	return there, isMountPoint(e.memory.mounter, s.Dir)
}

func (e *emptyDir) SetUp(ctx context.Context, s *Spec) (Mounted, error) {
	if err := e.Check(ctx, s); err != nil {
		return Mounted{}, err
	}
	c := emptyDirCall{Dir: s.Dir, Ready: s.ready(s.Volume.Name), Group: fsGroup(s.Pod), Mode: s.Volume.EmptyDir.Mode}
	switch medium := s.Volume.EmptyDir.Medium; {
	case medium == v1.StorageMediumMemory:
		c.System = e.memory.tmpfs(s.Pod, s.Volume.EmptyDir.SizeLimit)
	case isHugePages(medium):
		var err error
		if c.System, err = hugePages(s.Pod, medium); err != nil {
			return Mounted{}, err
		}
	}
	_, err := makeEmptyDir.Do(ctx, e.foreign, s.Dir, c)
	return Mounted{HostPath: s.Dir, SELinuxRelabel: true}, err
}

// emptyDirCall asks for an emptyDir.
type emptyDirCall struct {
	Dir string
	// Mode is the folder's, as chmod(1) has it; nil opens it to all. While its feature gate is off, no pod sets it.
	Mode *int32
	// System is what to mount there; nil is nothing.
	System *fileSystem
	// Group is the pod's fsGroup.
	Group *int64
	// Ready is set when all is done.
	Ready ready
}

func (c *emptyDirCall) do(m mount.Interface) error {
	if err := makeOpen(c.Dir); err != nil {
		return err
	}
	if c.System != nil {
		if err := c.System.mount(m, c.Dir); err != nil {
			return err
		}
	}
	if err := c.setMode(); err != nil {
		return err
	}
	if err := giveToGroup(c.Dir, c.Group, groupWrites); err != nil {
		return fmt.Errorf("give the volume to the pod's fsGroup: %w", err)
	}
	return c.Ready.set()
}

func (c *emptyDirCall) setMode() error {
	if c.Mode == nil {
		return nil
	}
	mode := fs.FileMode(*c.Mode) & fs.ModePerm
	for bit, of := range map[int32]fs.FileMode{
		unix.S_ISUID: fs.ModeSetuid, unix.S_ISGID: fs.ModeSetgid, unix.S_ISVTX: fs.ModeSticky,
	} {
		if *c.Mode&bit != 0 {
			mode |= of
		}
	}
	return os.Chmod(c.Dir, mode)
}

// isListed reports whether the parent of a folder lists it. Unlike its own attributes, that needs no answer of a file
// system that a pod may have mounted there.
func isListed(dir string) bool {
	entries, err := os.ReadDir(filepath.Dir(dir))
	return err == nil && slices.ContainsFunc(entries, func(e os.DirEntry) bool { return e.Name() == filepath.Base(dir) })
}

// isMountPoint is also false if that is unknown: the volume is then set up again, which reports why.
func isMountPoint(mounter mount.Interface, dir string) bool {
	mounted, err := mounter.IsMountPoint(dir)
	return err == nil && mounted
}
