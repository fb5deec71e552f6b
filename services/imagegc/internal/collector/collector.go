package collector

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"math/bits"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"

	retentionv1 "github.com/microlet/microlet/proto/microlet/imageretentionplugin/v1"
	"github.com/microlet/microlet/services/imagegc/internal/ages"
	"github.com/microlet/microlet/services/imagegc/internal/imagefs"
	"github.com/microlet/microlet/services/imagegc/internal/imagenames"
	"github.com/microlet/microlet/services/internal/logkey"
	"github.com/microlet/microlet/services/internal/tracing"
)

// Reasons of Events, as the kubelet has them.
const (
	reasonInvalidCapacity = "InvalidDiskCapacity"
	reasonNothingToFree   = "FreeDiskSpaceFailed"
)

// Reasons why images are removed, as kubelet_image_garbage_collected_total has them.
const (
	becauseOfAge   = "age"
	becauseOfSpace = "space"
)

// spanName is the kubelet's name of a collection in traces.
const spanName = "Images/GarbageCollect"

// Ages remember when images were used; see package ages.
type Ages interface {
	See(present []string, used map[string]bool) error
	Forget(id string)
	Of() map[string]ages.Age
}

// FileSystem measures the file system on which a path lies.
type FileSystem interface {
	Usage(ctx context.Context, path string) (imagefs.Usage, error)
}

// Pods know which images the node's pods name.
type Pods interface {
	// Named are the images that must not be removed.
	Named() (imagenames.Set, error)
	// Mounted are those of image volumes.
	Mounted() (imagenames.Set, error)
}

// Retention is the policy of the node's owner; see package retention.
type Retention interface {
	Keep(ctx context.Context, images []*retentionv1.KeepRequest_Image) (ids map[string]bool, err error)
}

// Events records Kubernetes Events.
type Events interface {
	Event(object runtime.Object, eventtype, reason, message string)
}

// Options of a Collector. All fields but Tracer and the ages' bounds are required.
type Options struct {
	Runtime    Runtime
	Ages       Ages
	FileSystem FileSystem
	Pods       Pods
	Retention  Retention
	// HighThresholdPercent and LowThresholdPercent are the use of the file system at which images are removed, and to
	// which.
	HighThresholdPercent, LowThresholdPercent int
	// MinimumAge is how long an image stays however full the disk is. MaximumAge is how long an unused image stays; 0 is
	// no bound.
	MinimumAge, MaximumAge time.Duration
	// Settling is for how long after the start no image goes because of its age, unless MaximumAge is shorter: pods may
	// soon use what was unused while the node was down. The kubelet waits for MaximumAge.
	Settling time.Duration
	Events   Events
	// Node is what the Events are about.
	Node *v1.ObjectReference
	// Tracer begins a trace with each collection; nil if the node does not trace.
	Tracer  *tracing.Tracer
	Log     *slog.Logger
	Metrics prometheus.Registerer
}

// Collector removes images. It is safe for concurrent use: one collection is under way at a time.
type Collector struct {
	o       Options
	metrics metrics
	started time.Time
	idle    chan struct{} // holds a token while no collection runs
	unsaved bool          // the file of ages could not be written last; only with the token
}

// Removed is what a collection has removed.
type Removed struct {
	Images int
	// Bytes are the sizes that the runtime gives. Images that share layers free less.
	Bytes int64
}

// New returns a collector.
func New(o Options) *Collector {
	c := &Collector{o: o, metrics: newMetrics(o.Metrics), started: time.Now(), idle: make(chan struct{}, 1)}
	c.idle <- struct{}{}
	return c
}

// enter waits until no other collection is under way.
func (c *Collector) enter(ctx context.Context) (leave func(), err error) {
	select {
	case <-c.idle:
		return func() { c.idle <- struct{}{} }, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("another garbage collection is under way: %w", ctx.Err())
	}
}

// Collect removes images that are too old, and then as many as bring the file system below the low threshold if it is
// above the high one. The error says, among others, that not enough could be removed.
func (c *Collector) Collect(ctx context.Context) (err error) {
	ctx, span := c.o.Tracer.Begin(ctx, spanName)
	defer func() { span.End(err) }()
	leave, err := c.enter(ctx)
	if err != nil {
		return err
	}
	defer leave()
	candidates, err := c.detect(ctx)
	if err != nil {
		return err
	}
	if candidates, err = c.removeOld(ctx, candidates); err != nil {
		return err
	}
	root, err := c.o.Runtime.ImageRoot(ctx)
	if err != nil {
		return fmt.Errorf("find the file system of the images: %w", err)
	}
	usage, err := c.usage(ctx, root)
	if err != nil {
		return err
	}
	if usage.Capacity == 0 {
		err := errors.New("invalid capacity 0 on image filesystem") // the kubelet's words
		c.o.Events.Event(c.o.Node, v1.EventTypeWarning, reasonInvalidCapacity, err.Error())
		return err
	}
	percent := usedPercent(usage)
	if percent < c.o.HighThresholdPercent {
		return nil
	}
	wanted := int64(scaled(usage.Capacity, uint64(100-c.o.LowThresholdPercent), 100)) - int64(usage.Available)
	c.o.Log.Info("image filesystem is above the high threshold; removing unused images", "usedPercent", percent,
		"high", c.o.HighThresholdPercent, "low", c.o.LowThresholdPercent, "bytes", wanted)
	removed, err := c.free(ctx, candidates, wanted)
	if err != nil {
		return err
	}
	if removed.Bytes < wanted {
		err := insufficient(percent, usage.Capacity, removed.Bytes)
		c.o.Events.Event(c.o.Node, v1.EventTypeWarning, reasonNothingToFree, err.Error())
		return err
	}
	return nil
}

// DeleteUnused removes all unused images, except those that are younger than the minimum age.
func (c *Collector) DeleteUnused(ctx context.Context) (Removed, error) {
	leave, err := c.enter(ctx)
	if err != nil {
		return Removed{}, err
	}
	defer leave()
	candidates, err := c.detect(ctx)
	if err != nil {
		return Removed{}, err
	}
	return c.free(ctx, candidates, math.MaxInt64)
}

// usageTimeout bounds how long a file system that hangs holds up a collection, and all that come after it.
const usageTimeout = 10 * time.Second

func (c *Collector) usage(ctx context.Context, root string) (imagefs.Usage, error) {
	ctx, cancel := context.WithTimeout(ctx, usageTimeout)
	defer cancel()
	return c.o.FileSystem.Usage(ctx, root)
}

// usedPercent is how much of a file system is used, rounded up as by the kubelet.
func usedPercent(u imagefs.Usage) int {
	return 100 - int(scaled(u.Available, 100, u.Capacity))
}

// scaled is n*by/of, rounded down. It is less than 2^64, though n*by need not be.
func scaled(n, by, of uint64) uint64 {
	high, low := bits.Mul64(n, by)
	quotient, _ := bits.Div64(high, low, of)
	return quotient
}

// insufficient is the kubelet's message about a disk that is full of other things.
func insufficient(percent int, capacity uint64, freed int64) error {
	//nolint:staticcheck // tools match on it
	return fmt.Errorf("Insufficient free disk space on the node's image filesystem (%d%% of %s used). "+
		"Failed to free sufficient space by deleting unused images (freed %d bytes). "+
		"Investigate disk usage, as it could be used by active images, logs, volumes, or other data.",
		percent, size(capacity), freed)
}

// size is a number of bytes for people, as the kubelet writes it.
func size(bytes uint64) string {
	if bytes < 1<<10 {
		return fmt.Sprintf("%d B", bytes)
	}
	units := []string{"KiB", "MiB", "GiB", "TiB"}
	value, unit := float64(bytes)/(1<<10), 0
	for value >= 1<<10 && unit < len(units)-1 {
		value, unit = value/(1<<10), unit+1
	}
	return fmt.Sprintf("%.1f %s", value, units[unit])
}

// reportUnsaved logs that ages could not be saved, once until they are.
func (c *Collector) reportUnsaved(err error) {
	if !c.unsaved {
		c.o.Log.Warn("ages of images not saved; after a restart they are those of before", logkey.Err, err)
	}
	c.unsaved = true
}
