package threshold

import (
	"slices"

	"github.com/microlet/microlet/services/evictor/internal/signal"
)

// Layout says which filesystems of the runtime are not the one of --root-dir.
type Layout struct {
	// ImageFs: images are on a filesystem of their own.
	ImageFs bool
	// SplitContainerFs: the writable layers are not with the images (KEP-4191).
	SplitContainerFs bool
}

// ForLayout returns the thresholds with those of containerfs, which are never configured: they are nodefs' if the
// writable layers are there, and else imagefs'.
func ForLayout(all []Threshold, l Layout) []Threshold {
	all = slices.DeleteFunc(slices.Clone(all), func(t Threshold) bool {
		return t.Signal == signal.ContainerFsAvailable || t.Signal == signal.ContainerFsInodesFree
	})
	of := map[signal.Signal]signal.Signal{
		signal.NodeFsAvailable: signal.ContainerFsAvailable, signal.NodeFsInodesFree: signal.ContainerFsInodesFree,
	}
	if l.ImageFs && !l.SplitContainerFs {
		of = map[signal.Signal]signal.Signal{
			signal.ImageFsAvailable: signal.ContainerFsAvailable, signal.ImageFsInodesFree: signal.ContainerFsInodesFree,
		}
	}
	for _, t := range slices.Clone(all) {
		if s, ok := of[t.Signal]; ok {
			t.Signal = s
			all = append(all, t)
		}
	}
	return all
}
