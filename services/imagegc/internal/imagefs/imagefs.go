// Package imagefs measures the file system that holds the images.
//
// The runtime says where its images lie, and the kernel is asked for the rest, so that image garbage collection works
// while stats is down. imagegc may not enter the runtime's folder, so it asks at the point where the file system is
// mounted.
package imagefs

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// Usage is what a file system has. The values are in bytes.
type Usage struct {
	Capacity uint64
	// Available is what users other than root may still take. It is at most Capacity.
	Available uint64
}

// Prober asks file systems. At most one call is under way, so that a file system that hangs costs one thread.
type Prober struct {
	mounts func(path string) ([]*mountinfo.Info, error)
	statfs func(path string, to *unix.Statfs_t) error

	mu   sync.Mutex
	call *call
}

type call struct {
	path  string
	done  chan struct{}
	usage Usage
	err   error
}

// New returns a prober of this node's file systems.
func New() *Prober {
	return &Prober{
		statfs: unix.Statfs,
		mounts: func(path string) ([]*mountinfo.Info, error) {
			return mountinfo.GetMounts(mountinfo.ParentsFilter(path))
		},
	}
}

// Usage asks the file system that path lies on, for as long as ctx allows.
func (p *Prober) Usage(ctx context.Context, path string) (Usage, error) {
	if !filepath.IsAbs(path) {
		return Usage{}, fmt.Errorf("the runtime keeps its images in %q, which is no absolute path", path)
	}
	c, err := p.begin(path)
	if err != nil {
		return Usage{}, err
	}
	select {
	case <-c.done:
		return c.usage, c.err
	case <-ctx.Done():
		return Usage{}, fmt.Errorf("the file system of %s does not answer: %w", path, ctx.Err())
	}
}

// begin returns the call for the path that is under way, or a new one.
func (p *Prober) begin(path string) (*call, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.call != nil {
		if p.call.path != path {
			return nil, fmt.Errorf("the file system of %s does not answer", p.call.path)
		}
		return p.call, nil
	}
	c := &call{path: path, done: make(chan struct{})}
	p.call = c
	// Nobody waits for its end if the file system hangs.
	go func() {
		c.usage, c.err = p.ask(path)
		p.mu.Lock()
		p.call = nil
		p.mu.Unlock()
		close(c.done)
	}()
	return c, nil
}

func (p *Prober) ask(path string) (Usage, error) {
	at, err := p.mountpoint(path)
	if err != nil {
		return Usage{}, err
	}
	var s unix.Statfs_t
	for {
		if err = p.statfs(at, &s); !errors.Is(err, unix.EINTR) {
			break
		}
	}
	if err != nil {
		return Usage{}, fmt.Errorf("ask the file system at %s, which holds the images: %w", at, err)
	}
	unit := uint64(max(s.Frsize, 0))
	u := Usage{Capacity: unit * s.Blocks, Available: unit * s.Bavail}
	u.Available = min(u.Available, u.Capacity)
	return u, nil
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
