// Package imagefs measures the file system that holds the images.
//
// The runtime says where its images lie, and the kernel is asked for the rest, so that image garbage collection works
// while stats is down. imagegc may not enter the runtime's folder, so it asks at the point where the file system is
// mounted.
package imagefs

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/moby/sys/mountinfo"

	"github.com/microlet/microlet/services/internal/fsusage"
)

// Usage is what a file system has. The values are in bytes.
type Usage struct {
	Capacity uint64
	// Available is what users other than root may still take. It is at most Capacity.
	Available uint64
}

// Prober asks file systems.
type Prober struct {
	mounts func(path string) ([]*mountinfo.Info, error)
	usage  func(ctx context.Context, path string) (fsusage.Usage, error)
}

// New returns a prober of this node's file systems.
func New() *Prober {
	filesystems := &fsusage.Prober{}
	return &Prober{
		usage: filesystems.Usage,
		mounts: func(path string) ([]*mountinfo.Info, error) {
			return mountinfo.GetMounts(mountinfo.ParentsFilter(path))
		},
	}
}

// Usage asks the file system that path lies on, for a second at most.
func (p *Prober) Usage(ctx context.Context, path string) (Usage, error) {
	if !filepath.IsAbs(path) {
		return Usage{}, fmt.Errorf("the runtime keeps its images in %q, which is no absolute path", path)
	}
	at, err := p.mountpoint(path)
	if err != nil {
		return Usage{}, err
	}
	u, err := p.usage(ctx, at)
	if err != nil {
		return Usage{}, fmt.Errorf("images in %s: %w", path, err)
	}
	return Usage{Capacity: u.Capacity, Available: min(u.Available, u.Capacity)}, nil
}

// mountpoint is where the file system of a path is mounted: the innermost mount above it, and of several at one point
// the last.
func (p *Prober) mountpoint(path string) (string, error) {
	mounts, err := p.mounts(path)
	if err != nil {
		return "", fmt.Errorf("find the file system of %s: %w", path, err)
	}
	innermost := ""
	for _, m := range mounts {
		if len(m.Mountpoint) >= len(innermost) && above(m.Mountpoint, path) {
			innermost = m.Mountpoint
		}
	}
	if innermost == "" {
		return "", fmt.Errorf("no file system is mounted at or above %s", path)
	}
	return innermost, nil
}

// above reports whether a path is the directory or below it.
func above(directory, path string) bool {
	rel, err := filepath.Rel(directory, path)
	return err == nil && rel != ".." && !strings.HasPrefix(rel, "../")
}
