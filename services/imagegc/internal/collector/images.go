package collector

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/microlet/microlet/services/imagegc/internal/ages"
	"github.com/microlet/microlet/services/imagegc/internal/imagenames"
)

// Runtime is the part of CRI that imagegc may call.
type Runtime interface {
	Images(ctx context.Context) ([]*runtimeapi.Image, error)
	Containers(ctx context.Context) ([]*runtimeapi.Container, error)
	Remove(ctx context.Context, id string) error
	// ImageRoot is the folder in which the runtime keeps its images.
	ImageRoot(ctx context.Context) (string, error)
}

// candidate is an image that may be removed, and why not if it may not.
type candidate struct {
	image *runtimeapi.Image
	age   ages.Age
}

// names are all names of an image, and its ID.
func names(image *runtimeapi.Image) []string {
	all := append([]string{image.GetId()}, image.GetRepoTags()...)
	return append(all, image.GetRepoDigests()...)
}

// isNamed reports whether one of an image's names is among these.
func isNamed(image *runtimeapi.Image, among imagenames.Set) bool {
	return slices.ContainsFunc(names(image), among.Has)
}

// inUse are the IDs of the images that containers use, running or not. A container names its image by its ID; an older
// runtime may name it otherwise.
func inUse(images []*runtimeapi.Image, containers []*runtimeapi.Container) map[string]bool {
	used := imagenames.Set{}
	for _, c := range containers {
		for _, name := range []string{c.GetImageId(), c.GetImageRef(), c.GetImage().GetImage()} {
			if name != "" {
				used[imagenames.Normal(name)] = true
			}
		}
	}
	ids := map[string]bool{}
	for _, image := range images {
		if isNamed(image, used) {
			ids[image.GetId()] = true
		}
	}
	return ids
}

// Detect records which images are on the node, and which of them containers use.
func (c *Collector) Detect(ctx context.Context) error {
	leave, err := c.enter(ctx)
	if err != nil {
		return err
	}
	defer leave()
	_, err = c.detect(ctx)
	return err
}

// detect returns the images that may be removed, in the order in which they are to be.
func (c *Collector) detect(ctx context.Context) ([]candidate, error) {
	images, err := c.o.Runtime.Images(ctx)
	if err != nil {
		return nil, fmt.Errorf("list images: %w", err)
	}
	containers, err := c.o.Runtime.Containers(ctx)
	if err != nil {
		return nil, fmt.Errorf("list containers: %w", err)
	}
	used := inUse(images, containers)
	// While the pods are not known nothing is removed, and what is mounted only seems to have been unused since.
	if mounted, err := c.o.Pods.Mounted(); err == nil {
		for _, image := range images {
			if isNamed(image, mounted) {
				used[image.GetId()] = true
			}
		}
	}
	ids := make([]string, len(images))
	for i, image := range images {
		ids[i] = image.GetId()
	}
	if err := c.o.Ages.See(ids, used); err != nil {
		c.reportUnsaved(err) // the ages hold until the next restart
	}
	c.metrics.images.Set(float64(len(images)))
	known := c.o.Ages.Of()
	var candidates []candidate
	for _, image := range images {
		if !used[image.GetId()] && !image.GetPinned() {
			candidates = append(candidates, candidate{image, known[image.GetId()]})
		}
	}
	slices.SortFunc(candidates, before)
	return candidates, nil
}

// before orders images as they are removed: those that were never used first, then by the last use, then by when they
// came. IDs make the order certain.
func before(a, b candidate) int {
	if a.age.Used != b.age.Used {
		if a.age.Used {
			return 1
		}
		return -1
	}
	lastUse := 0
	if a.age.Used {
		lastUse = cmp.Compare(b.age.Unused, a.age.Unused)
	}
	return cmp.Or(lastUse, cmp.Compare(b.age.Detected, a.age.Detected), cmp.Compare(a.image.GetId(), b.image.GetId()))
}

// sizeOf is how large an image is; a size that cannot be counts as nothing freed.
func sizeOf(image *runtimeapi.Image) int64 {
	const unbelievable = 1 << 62
	if image.GetSize() > unbelievable {
		return 0
	}
	return int64(image.GetSize())
}

// isOlder reports whether an image has been unused for longer than the maximum age; 0 is no maximum.
func (c *Collector) isOlder(image candidate) bool {
	return c.o.MaximumAge > 0 && image.age.Unused > c.o.MaximumAge
}

// isNew reports whether an image came so recently that a pod may be about to use it.
func (c *Collector) isNew(image candidate) bool { return image.age.Detected < c.o.MinimumAge }

// removeTimeout bounds the removal of one image, which is a matter of many small files.
const removeTimeout = 2 * time.Minute
