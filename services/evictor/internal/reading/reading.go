// Package reading reads the eviction signals from cgroups, /proc and filesystems.
//
// It needs neither stats nor, for memory and process IDs, the runtime. A figure that cannot be, such as a size of 0 or
// more available than there is, is an error and no observation.
package reading

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/microlet/microlet/services/evictor/internal/signal"
	"github.com/microlet/microlet/services/evictor/internal/threshold"
	"github.com/microlet/microlet/services/internal/fsusage"
)

// imagesPeriod is how old the runtime's account of its filesystems may be. The account changes when the runtime gets
// another configuration.
const imagesPeriod = 10 * time.Minute

// errNoLimit says that the cgroup of all pods has no limit, so that nothing is allocatable by it. It is no failure.
var errNoLimit = errors.New("the cgroup of all pods has no limit")

// Filesystems are where the runtime keeps images and writable layers.
type Filesystems struct {
	Images, Containers string
}

// Options of a Reader.
type Options struct {
	Memory    Memory
	Processes Processes
	// PodsCgroup names the cgroup of all pods, below the mount; it may not exist yet.
	PodsCgroup func() string
	// RootDir is the kubelet's.
	RootDir string
	// Filesystems asks the runtime.
	Filesystems func(ctx context.Context) (Filesystems, error)
}

// Reader reads signals. It is safe for concurrent use.
type Reader struct {
	o     Options
	usage func(ctx context.Context, path string) (fsusage.Usage, error)

	mu      sync.Mutex // held while the runtime is asked
	runtime Filesystems
	asked   time.Time // when the runtime answered
}

// New returns a Reader.
func New(o Options) *Reader {
	filesystems := &fsusage.Prober{}
	return &Reader{o: o, usage: filesystems.Usage}
}

// Result is what was read at one time.
type Result struct {
	Seen threshold.Observations
	// Failed says why a signal is not in Seen.
	Failed map[signal.Signal]error
	// Layout is that of the filesystems; LayoutKnown says that the runtime has reported it.
	Layout      threshold.Layout
	LayoutKnown bool
}

// Quick reads the signals of memory and process IDs, which takes a fraction of a millisecond.
func (r *Reader) Quick() Result {
	out := newResult()
	r.quick(out)
	return *out
}

// Disks reads the signals of the filesystems. It takes some seconds if one of them or the runtime hangs.
func (r *Reader) Disks(ctx context.Context) Result {
	out := newResult()
	r.allDisks(ctx, out)
	return *out
}

// All reads all signals, and takes as long as Disks.
func (r *Reader) All(ctx context.Context) Result {
	out := newResult()
	r.allDisks(ctx, out)
	r.quick(out)
	return *out
}

func newResult() *Result {
	return &Result{Seen: threshold.Observations{}, Failed: map[signal.Signal]error{}}
}

func (r *Reader) quick(out *Result) {
	r.memory(out)
	limit, running, err := r.o.Processes.Read()
	out.add(signal.PIDAvailable, max(limit-running, 0), limit, err)
}

func (r *Reader) memory(out *Result) {
	available, capacity, err := r.o.Memory.Node()
	out.add(signal.MemoryAvailable, available, capacity, err)
	pods := r.o.PodsCgroup()
	var used int64
	limit, err := r.o.Memory.Limit(pods)
	if err == nil && limit == 0 {
		err = errNoLimit
	}
	if err == nil {
		used, err = r.o.Memory.WorkingSet(pods)
	}
	// The kernel may hold more than the limit for a moment.
	out.add(signal.AllocatableMemoryAvailable, max(limit-used, 0), limit, err)
}

func (r *Reader) allDisks(ctx context.Context, out *Result) {
	r.mu.Lock()
	defer r.mu.Unlock()
	root, rootErr := r.disk(ctx, r.o.RootDir)
	out.disk(signal.NodeFsAvailable, signal.NodeFsInodesFree, root, rootErr)
	if time.Since(r.asked) >= imagesPeriod || r.asked.IsZero() {
		fs, err := r.o.Filesystems(ctx)
		if err == nil && (fs.Images == "" || fs.Containers == "") {
			err = errors.New("the runtime does not report its filesystems")
		}
		if err == nil {
			r.runtime, r.asked = fs, time.Now()
		} else if r.runtime == (Filesystems{}) {
			out.disk(signal.ImageFsAvailable, signal.ImageFsInodesFree, disk{}, err)
			out.disk(signal.ContainerFsAvailable, signal.ContainerFsInodesFree, disk{}, err)
			return
		}
	}
	images, imagesErr := r.disk(ctx, r.runtime.Images)
	out.disk(signal.ImageFsAvailable, signal.ImageFsInodesFree, images, imagesErr)
	containers, containersErr := r.disk(ctx, r.runtime.Containers)
	out.disk(signal.ContainerFsAvailable, signal.ContainerFsInodesFree, containers, containersErr)
	if errors.Join(rootErr, imagesErr, containersErr) == nil {
		out.LayoutKnown = true
		out.Layout = threshold.Layout{
			ImageFs:          images.device != root.device || images.device != containers.device,
			SplitContainerFs: images.device != containers.device,
		}
	}
}

func (out *Result) disk(available, inodes signal.Signal, d disk, err error) {
	out.add(available, d.available, d.capacity, err)
	if err == nil && d.inodes == 0 {
		return // the filesystem does not count them
	}
	out.add(inodes, d.inodesFree, d.inodes, err)
}

// add takes an observation over, unless it cannot be.
func (out *Result) add(s signal.Signal, available, capacity int64, err error) {
	switch {
	case err != nil:
		out.Failed[s] = err
	case capacity <= 0:
		out.Failed[s] = fmt.Errorf("the capacity is %d", capacity)
	case available < 0 || available > capacity:
		out.Failed[s] = fmt.Errorf("%d of %d are available", available, capacity)
	default:
		out.Seen[s] = threshold.Observation{Available: available, Capacity: capacity, Time: time.Now()}
	}
}

// Harmless says that a signal that failed for this reason is simply not there.
func Harmless(err error) bool { return errors.Is(err, errNoLimit) }
