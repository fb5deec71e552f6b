package volume

import (
	"context"
	"fmt"
	"os"
	"strings"

	v1 "k8s.io/api/core/v1"
	mount "k8s.io/mount-utils"
)

const emptyDirName = "kubernetes.io~empty-dir"

// emptyDir is a folder that lives as long as its pod: on disk, in memory or of huge pages.
type emptyDir struct {
	memory *memory
	calls  *calls
}

func (e *emptyDir) Name() string { return emptyDirName }

func (e *emptyDir) Handles(v *v1.Volume) bool { return v.EmptyDir != nil }

func (e *emptyDir) Refreshes() bool { return false }

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
		_, err := os.Stat(s.Dir)
		return there, err == nil
	}
	// The mark is on disk and outlives a reboot, what is in memory does not.
	return there, isMountPoint(e.memory.mounter, s.Dir)
}

func (e *emptyDir) SetUp(ctx context.Context, s *Spec) (Mounted, error) {
	if err := e.Check(ctx, s); err != nil {
		return Mounted{}, err
	}
	return Mounted{HostPath: s.Dir, SELinuxRelabel: true}, e.calls.do(ctx, s.Dir, func() error {
		if err := makeOpen(s.Dir); err != nil {
			return err
		}
		var err error
		switch medium := s.Volume.EmptyDir.Medium; {
		case medium == v1.StorageMediumMemory:
			err = e.memory.mountTmpfs(s.Pod, s.Dir, s.Volume.EmptyDir.SizeLimit)
		case isHugePages(medium):
			err = e.memory.mountHugePages(s.Pod, s.Dir, medium)
		}
		if err != nil {
			return err
		}
		if err := giveToGroup(s.Dir, fsGroup(s.Pod), groupWrites); err != nil {
			return fmt.Errorf("give the volume to the pod's fsGroup: %w", err)
		}
		return s.ready(s.Volume.Name).set()
	})
}

// isMountPoint is false too where that is unknown: then the volume is set up again, which
// reports why.
func isMountPoint(mounter mount.Interface, dir string) bool {
	mounted, err := mounter.IsMountPoint(dir)
	return err == nil && mounted
}
