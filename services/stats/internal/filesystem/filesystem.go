// Package filesystem measures the node's file systems.
//
// cAdvisor's own reader asks every file system for its figures each time and lets a thread hang for each call that does
// not return. Here at most one call a path is under way, nobody waits longer than a second for it, and file systems of
// the network are never asked: a process with a thread that hangs in one may not end even when it is killed.
package filesystem

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

const (
	// patience is how long one file system may take to answer.
	patience = time.Second
	// maxPaths bounds the paths of which a call may be under way at one time.
	maxPaths = 64
)

// errHangs is the error of a file system that has not answered yet.
var errHangs = errors.New("the file system does not answer")

// Usage is what a file system has and has left.
type Usage struct {
	// Time is when it was asked.
	Time time.Time
	// Capacity, Free and Available are bytes; Available is what users other than root may still take.
	Capacity, Free, Available uint64
	// Inodes and InodesFree are 0 where the file system has no such numbers.
	Inodes, InodesFree uint64
}

// Prober asks file systems. The zero value is ready. It is safe for concurrent use.
type Prober struct {
	mu    sync.Mutex
	calls map[string]*call

	statfs func(path string, to *unix.Statfs_t) error // nil: the system's
}

type call struct {
	began time.Time
	done  chan struct{}
	usage Usage
	err   error
}

// Usage asks the file system that path lies on. It waits until a call has taken patience, which an earlier caller may
// have begun; the error then is that the file system does not answer. One that hangs costs that time only once.
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
		return Usage{}, fmt.Errorf("ask the file system of %s: %w", path, errHangs)
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
		return nil, fmt.Errorf("ask the file system of %s: %d others do not answer", path, len(p.calls))
	}
	if p.calls == nil {
		p.calls = map[string]*call{}
	}
	c := &call{began: time.Now(), done: make(chan struct{})}
	p.calls[path] = c
	// Nobody waits for its end: a file system that hangs hangs alone, and this one thread with it.
	go func() {
		c.usage, c.err = p.ask(path)
		p.mu.Lock()
		delete(p.calls, path)
		p.mu.Unlock()
		close(c.done)
	}()
	return c, nil
}

func (p *Prober) ask(path string) (Usage, error) {
	statfs := unix.Statfs
	if p.statfs != nil {
		statfs = p.statfs
	}
	var s unix.Statfs_t
	for {
		err := statfs(path, &s)
		if err == nil {
			break
		}
		if !errors.Is(err, unix.EINTR) {
			return Usage{}, fmt.Errorf("ask the file system of %s: %w", path, err)
		}
	}
	unit := uint64(max(s.Frsize, 0))
	return Usage{
		Time: time.Now(), Capacity: unit * s.Blocks, Free: unit * s.Bfree, Available: unit * s.Bavail,
		Inodes: s.Files, InodesFree: s.Ffree,
	}, nil
}

// Partition is a mounted file system of the node itself.
type Partition struct {
	// Device as cAdvisor names it: the source of the mount, or the mount point of a tmpfs.
	Device       string
	Mountpoint   string
	Type         string
	Major, Minor int
}

// local are the file systems that are asked: those of the machine's own disks and memory that cAdvisor knows.
func local(fsType string) bool {
	switch fsType {
	case "xfs", "btrfs", "zfs", "tmpfs", "overlay", "squashfs", "f2fs", "jfs", "reiserfs", "hfs", "hfsplus", "ntfs",
		"vfat", "fat", "msdos", "exfat", "udf", "iso9660":
		return true
	}
	return strings.HasPrefix(fsType, "ext")
}

// maxPartitions bounds the partitions of a node that are reported.
const maxPartitions = 128

// Partitions returns the node's own file systems, each once, ordered by device. What pods mount, which is below the
// folders in except, is left out, and so are the root file systems of containers: they come and go with their pods.
func Partitions(except ...string) ([]Partition, error) {
	file, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	defer file.Close()
	mounts, err := mountinfo.GetMountsFromReader(file, nil)
	if err != nil {
		return nil, fmt.Errorf("read the mounts of the node: %w", err)
	}
	return partitions(mounts, except), nil
}

func partitions(mounts []*mountinfo.Info, except []string) []Partition {
	seen := map[string]bool{}
	var all []Partition
	for _, m := range mounts {
		p := Partition{Device: m.Source, Mountpoint: m.Mountpoint, Type: m.FSType, Major: m.Major, Minor: m.Minor}
		if m.Mountpoint != "/" {
			if !local(m.FSType) || m.FSType == "overlay" || inside(m.Mountpoint, except) {
				continue
			}
			if m.FSType == "tmpfs" {
				p.Device = m.Mountpoint // their sources are all alike
			}
		}
		if m.FSType == "overlay" {
			p.Device = fmt.Sprintf("%s_%d-%d", m.Source, m.Major, m.Minor)
		}
		if seen[p.Device] || len(all) == maxPartitions {
			continue
		}
		seen[p.Device] = true
		all = append(all, p)
	}
	slices.SortFunc(all, func(a, b Partition) int { return strings.Compare(a.Device, b.Device) })
	return all
}

func inside(at string, folders []string) bool {
	return slices.ContainsFunc(folders, func(folder string) bool {
		folder = path.Clean(folder)
		return at != folder && strings.HasPrefix(at, strings.TrimSuffix(folder, "/")+"/")
	})
}
