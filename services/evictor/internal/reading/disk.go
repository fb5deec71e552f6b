package reading

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// diskPatience is how long one filesystem may take to answer.
const diskPatience = time.Second

var errHangs = errors.New("the filesystem does not answer")

// Disk is what a filesystem has.
type Disk struct {
	// Device tells filesystems apart.
	Device uint64
	// Capacity and Available are bytes; Available is what users other than root may take.
	Capacity, Available int64
	// Inodes and InodesFree are 0 where the filesystem does not count them.
	Inodes, InodesFree int64
}

// Disks asks filesystems. One that hangs holds up nobody, and is not asked again before it has answered. The zero value
// is ready.
type Disks struct {
	mu    sync.Mutex
	calls map[string]*diskCall
	// ask is askDisk but in tests.
	ask func(path string) (Disk, error)
}

type diskCall struct {
	done chan struct{}
	disk Disk
	err  error
}

// Read asks the filesystem that the path is on.
func (d *Disks) Read(ctx context.Context, path string) (Disk, error) {
	c := d.begin(path)
	ctx, cancel := context.WithTimeout(ctx, diskPatience)
	defer cancel()
	select {
	case <-c.done:
		return c.disk, c.err
	case <-ctx.Done():
		return Disk{}, fmt.Errorf("ask the filesystem of %s: %w", path, errHangs)
	}
}

// begin returns the call that is under way, or a new one. Nobody waits for the end of one that hangs: only the kernel
// could end it.
func (d *Disks) begin(path string) *diskCall {
	d.mu.Lock()
	defer d.mu.Unlock()
	if c := d.calls[path]; c != nil {
		return c
	}
	if d.calls == nil {
		d.calls = map[string]*diskCall{}
	}
	ask := d.ask
	if ask == nil {
		ask = askDisk
	}
	c := &diskCall{done: make(chan struct{})}
	d.calls[path] = c
	go func() {
		c.disk, c.err = ask(path)
		d.mu.Lock()
		delete(d.calls, path)
		d.mu.Unlock()
		close(c.done)
	}()
	return c
}

func askDisk(path string) (Disk, error) {
	var at unix.Stat_t
	var s unix.Statfs_t
	for {
		err := unix.Stat(path, &at)
		if err == nil {
			err = unix.Statfs(path, &s)
		}
		if err == nil {
			break
		}
		if !errors.Is(err, unix.EINTR) {
			return Disk{}, fmt.Errorf("ask the filesystem of %s: %w", path, err)
		}
	}
	unit := uint64(max(s.Frsize, 0))
	return Disk{
		Device: at.Dev, Capacity: bounded(unit * s.Blocks), Available: bounded(unit * s.Bavail),
		Inodes: bounded(s.Files), InodesFree: bounded(s.Ffree),
	}, nil
}

func bounded(n uint64) int64 { return int64(min(n, math.MaxInt64)) }
