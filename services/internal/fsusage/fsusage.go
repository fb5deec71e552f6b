// Package fsusage asks the node's filesystems how full they are.
//
// A filesystem that hangs holds the thread that asks it, and only the kernel can end that. So at most one call a path
// is under way, and no caller waits longer than a second for it. A process with a thread that hangs in a filesystem of
// the network may not end even when it is killed: do not ask those.
package fsusage

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/microlet/microlet/services/internal/samemount"
)

const (
	// patience is how long one filesystem may take to answer.
	patience = time.Second
	// maxPaths bounds the paths of which a call may be under way at one time.
	maxPaths = 64
)

// ErrHangs is the error of a filesystem that has not answered within a second.
var ErrHangs = errors.New("the filesystem does not answer")

// Usage is what a filesystem has and has left.
type Usage struct {
	// Time is when it was asked.
	Time time.Time
	// DeviceID identifies a filesystem. Subvolumes of one btrfs have the same: they share its space.
	DeviceID uint64
	// Capacity, Free and Available are bytes; Available is what users other than root may still take.
	Capacity, Free, Available uint64
	// Inodes and InodesFree are 0 where the filesystem does not count them.
	Inodes, InodesFree uint64
}

// Prober asks filesystems. The zero value is ready. It is safe for concurrent use.
type Prober struct {
	mu    sync.Mutex
	calls map[string]*call

	ask func(path string) (Usage, error) // nil: the kernel
}

type call struct {
	began time.Time
	done  chan struct{}
	usage Usage
	err   error
}

// Usage asks the filesystem that path lies on. It waits until a call has taken a second, which an earlier caller may
// have begun; the error is then ErrHangs. A filesystem that hangs costs its callers that time only once.
func (p *Prober) Usage(ctx context.Context, path string) (Usage, error) {
	c, err := p.begin(path)
	if err != nil {
		return Usage{}, err
	}
	ctx, cancel := context.WithDeadline(ctx, c.began.Add(patience))
	defer cancel()
	select {
	case <-c.done:
		return c.usage, c.err
	case <-ctx.Done():
		return Usage{}, fmt.Errorf("ask the filesystem of %s: %w", path, ErrHangs)
	}
}

// begin returns the call for the path that is under way, or a new one.
func (p *Prober) begin(path string) (*call, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if c := p.calls[path]; c != nil {
		return c, nil
	}
	if len(p.calls) >= maxPaths {
		return nil, fmt.Errorf("ask the filesystem of %s: %d others do not answer", path, len(p.calls))
	}
	if p.calls == nil {
		p.calls = map[string]*call{}
	}
	ask := p.ask
	if ask == nil {
		ask = askKernel
	}
	c := &call{began: time.Now(), done: make(chan struct{})}
	p.calls[path] = c
	// No caller waits for its end: a filesystem that hangs blocks only this one thread.
	go func() {
		c.usage, c.err = ask(path)
		p.mu.Lock()
		delete(p.calls, path)
		p.mu.Unlock()
		close(c.done)
	}()
	return c, nil
}

func askKernel(path string) (Usage, error) {
	var at unix.Stat_t
	var fs unix.Statfs_t
	err := samemount.IgnoringEINTR(func() error {
		if err := unix.Stat(path, &at); err != nil {
			return err
		}
		return unix.Statfs(path, &fs)
	})
	if err != nil {
		return Usage{}, fmt.Errorf("ask the filesystem of %s: %w", path, err)
	}
	u := usageOf(&at, &fs, time.Now())
	if fs.Type == unix.BTRFS_SUPER_MAGIC {
		if u.DeviceID, err = mountedDevice(path); err != nil {
			return Usage{}, fmt.Errorf("ask the filesystem of %s: %w", path, err)
		}
	}
	return u, nil
}

func usageOf(at *unix.Stat_t, fs *unix.Statfs_t, now time.Time) Usage {
	unit := uint64(max(fs.Frsize, 0))
	return Usage{
		Time: now, DeviceID: at.Dev,
		Capacity: unit * fs.Blocks, Free: unit * fs.Bfree, Available: unit * fs.Bavail,
		Inodes: fs.Files, InodesFree: fs.Ffree,
	}
}
