package collector

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/record"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	retentionv1 "github.com/microlet/microlet/proto/microlet/imageretentionplugin/v1"
	"github.com/microlet/microlet/services/imagegc/internal/ages"
	"github.com/microlet/microlet/services/imagegc/internal/imagefs"
	"github.com/microlet/microlet/services/imagegc/internal/imagenames"
	"github.com/microlet/microlet/services/imagegc/internal/podimages"
)

// world is a runtime, a disk of 1,000 bytes and pods.
type world struct {
	images     []*runtimeapi.Image
	containers []*runtimeapi.Container
	ages       map[string]ages.Age
	named      imagenames.Set
	mounted    imagenames.Set
	used       map[string]bool // as last passed to Ages
	namedErr   error
	other      uint64 // bytes of the disk that are no images
	capacity   uint64
	stuck      map[string]error
	removed    []string
	saveErr    error
	onRemove   func(id string)
	kept       map[string]bool
	keptErr    error
}

func newWorld() *world {
	return &world{ages: map[string]ages.Age{}, named: imagenames.Set{}, capacity: 1000, stuck: map[string]error{}}
}

// add puts an unused image there that was last used so long ago.
func (w *world) add(id string, size uint64, unused time.Duration) *runtimeapi.Image {
	image := &runtimeapi.Image{Id: id, Size: size, RepoTags: []string{"registry.example/" + id + ":1"}}
	w.images = append(w.images, image)
	w.ages[id] = ages.Age{Detected: unused + time.Hour, Unused: unused, Used: true}
	return image
}

func (w *world) Images(context.Context) ([]*runtimeapi.Image, error) { return w.images, nil }
func (w *world) Containers(context.Context) ([]*runtimeapi.Container, error) {
	return w.containers, nil
}
func (w *world) ImageRoot(context.Context) (string, error) { return "/images", nil }

func (w *world) Remove(_ context.Context, id string) error {
	if err := w.stuck[id]; err != nil {
		return err
	}
	w.removed = append(w.removed, id)
	w.images = slices.DeleteFunc(w.images, func(i *runtimeapi.Image) bool { return i.GetId() == id })
	if w.onRemove != nil {
		w.onRemove(id)
	}
	return nil
}

func (w *world) Usage(context.Context, string) (imagefs.Usage, error) {
	used := w.other
	for _, i := range w.images {
		used += i.GetSize()
	}
	return imagefs.Usage{Capacity: w.capacity, Available: w.capacity - min(used, w.capacity)}, nil
}

func (w *world) See(_ []string, used map[string]bool) error {
	w.used = used
	return w.saveErr
}
func (w *world) Of() map[string]ages.Age { return w.ages }
func (w *world) Forget(id string)        { delete(w.ages, id) }

func (w *world) Keep(context.Context, []*retentionv1.KeepRequest_Image) (map[string]bool, error) {
	return w.kept, w.keptErr
}

func (w *world) Named() (imagenames.Set, error)   { return w.named, w.namedErr }
func (w *world) Mounted() (imagenames.Set, error) { return w.mounted, w.namedErr }

// collector returns one with the kubelet's defaults.
func (w *world) collector(change func(*Options)) (*Collector, *record.FakeRecorder) {
	events := record.NewFakeRecorder(10)
	o := Options{
		Runtime: w, Ages: w, FileSystem: w, Pods: w, Retention: w, HighThresholdPercent: 85, LowThresholdPercent: 80,
		MinimumAge: 2 * time.Minute, Events: events, Node: &v1.ObjectReference{Kind: "Node", Name: "n"},
		Log: slog.New(slog.DiscardHandler), Metrics: prometheus.NewRegistry(),
	}
	if change != nil {
		change(&o)
	}
	return New(o), events
}

func (w *world) wantRemoved(t *testing.T, want ...string) {
	t.Helper()
	if !slices.Equal(w.removed, want) {
		t.Errorf("removed %q, want %q", w.removed, want)
	}
}

func wantEvent(t *testing.T, r *record.FakeRecorder, want string) {
	t.Helper()
	select {
	case got := <-r.Events:
		if got != want {
			t.Errorf("event %q, want %q", got, want)
		}
	default:
		if want != "" {
			t.Errorf("no event, want %q", want)
		}
	}
}

// Images go in the order of their last use until the low threshold is reached, and those that were never used first.
func TestCollectFreesToTheLowThreshold(t *testing.T) {
	w := newWorld()
	w.other = 400
	w.add("recent", 100, time.Minute)
	w.add("old", 100, 3*time.Hour)
	w.add("older", 100, 5*time.Hour)
	w.add("middle", 200, 2*time.Hour)
	w.add("never", 50, 0)
	w.ages["never"] = ages.Age{Detected: time.Hour, Unused: time.Hour}
	c, events := w.collector(nil)
	if err := c.Collect(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.wantRemoved(t, "never", "older") // 950 of 1,000 are used, and 800 may be
	wantEvent(t, events, "")
	if got := testutil.ToFloat64(c.metrics.collected.WithLabelValues(becauseOfSpace)); got != 2 {
		t.Errorf("counted %v", got)
	}
	w.removed = nil
	if err := c.Collect(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.wantRemoved(t)
}

func TestWhatIsKept(t *testing.T) {
	w := newWorld()
	w.other = 990
	running := w.add("running", 10, time.Hour)
	w.add("stopped", 10, time.Hour)
	w.add("pinned", 10, time.Hour).Pinned = true
	w.add("named", 10, time.Hour)
	w.add("mounted", 10, time.Hour)
	w.add("digest", 10, time.Hour).RepoDigests = []string{"registry.example/x@sha256:" + strings.Repeat("a", 64)}
	w.add("new", 10, time.Hour)
	w.ages["new"] = ages.Age{Detected: time.Minute, Unused: time.Minute}
	w.add("unused", 10, time.Hour)
	w.containers = []*runtimeapi.Container{
		{ImageId: running.GetId(), State: runtimeapi.ContainerState_CONTAINER_RUNNING},
		{ImageRef: "registry.example/stopped:1", State: runtimeapi.ContainerState_CONTAINER_EXITED},
	}
	w.named[imagenames.Normal("registry.example/named:1")] = true
	w.mounted = imagenames.Set{imagenames.Normal("registry.example/mounted:1"): true}
	w.named[imagenames.Normal("registry.example/x@sha256:"+strings.Repeat("a", 64))] = true
	c, events := w.collector(nil)
	err := c.Collect(t.Context())
	w.wantRemoved(t, "unused")
	if !w.used["mounted"] || w.used["named"] {
		t.Errorf("in use are %v", w.used)
	}
	const want = "Insufficient free disk space on the node's image filesystem (100% of 1000 B used). " +
		"Failed to free sufficient space by deleting unused images (freed 10 bytes). " +
		"Investigate disk usage, as it could be used by active images, logs, volumes, or other data."
	if err == nil || err.Error() != want {
		t.Errorf("error %v", err)
	}
	wantEvent(t, events, "Warning FreeDiskSpaceFailed "+want)
	w.removed = nil
	if removed, err := c.DeleteUnused(t.Context()); err != nil || removed != (Removed{}) {
		t.Errorf("a request removes %+v, %v", removed, err)
	}
}

// A pod that is admitted while images are removed keeps its own.
func TestAPodThatComesMeanwhileKeepsItsImage(t *testing.T) {
	w := newWorld()
	for i := range 3 {
		w.add(fmt.Sprintf("i%d", i), 10, time.Duration(9-i)*time.Hour)
	}
	w.onRemove = func(string) { w.named[imagenames.Normal("registry.example/i1:1")] = true }
	c, _ := w.collector(nil)
	removed, err := c.DeleteUnused(t.Context())
	if err != nil || removed != (Removed{2, 20}) {
		t.Errorf("%+v, %v", removed, err)
	}
	w.wantRemoved(t, "i0", "i2")
}

// What the owner of the node wants to keep stays, and nothing goes if that cannot be found out.
func TestRetention(t *testing.T) {
	w := newWorld()
	w.kept = map[string]bool{"base": true}
	w.add("base", 500, 48*time.Hour)
	w.add("app", 490, 47*time.Hour)
	c, _ := w.collector(func(o *Options) { o.MaximumAge = 72 * time.Hour })
	if removed, err := c.DeleteUnused(t.Context()); err != nil || removed != (Removed{1, 490}) {
		t.Errorf("removed %+v, %v", removed, err)
	}
	w.wantRemoved(t, "app")
	w.removed, w.keptErr = nil, errors.New("no policy")
	w.other = 400
	c, _ = w.collector(func(o *Options) { o.MaximumAge = time.Hour })
	if err := c.Collect(t.Context()); err == nil || !strings.Contains(err.Error(), "no policy") {
		t.Errorf("without a policy: %v", err)
	}
	w.wantRemoved(t)
}

func TestNothingIsRemovedWhileThePodsAreNotKnown(t *testing.T) {
	w := newWorld()
	w.namedErr = podimages.ErrUnknown
	w.add("unused", 990, time.Hour)
	c, _ := w.collector(func(o *Options) { o.MaximumAge = time.Minute })
	if err := c.Collect(t.Context()); !errors.Is(err, podimages.ErrUnknown) {
		t.Errorf("collect: %v", err)
	}
	if _, err := c.DeleteUnused(t.Context()); !errors.Is(err, podimages.ErrUnknown) {
		t.Errorf("delete: %v", err)
	}
	w.wantRemoved(t)
}

func TestImagesThatAreTooOldGoWhateverTheUseIs(t *testing.T) {
	w := newWorld()
	w.add("old", 10, 25*time.Hour)
	w.add("stuck", 10, 26*time.Hour)
	w.stuck["stuck"] = errors.New("the file system is read-only")
	w.add("young", 10, 23*time.Hour)
	c, _ := w.collector(func(o *Options) { o.MaximumAge = 24 * time.Hour })
	err := c.Collect(t.Context())
	w.wantRemoved(t, "old")
	if err == nil || !strings.Contains(err.Error(), "wanted to free images older than 24h0m0s") ||
		!strings.Contains(err.Error(), "remove image stuck: the file system is read-only") {
		t.Errorf("error %v", err)
	}
}

// An image that was too old before the start stays a while after it: the pods that use it may not have started yet. A
// full disk does not wait for that.
func TestNoImageGoesForItsAgeSoonAfterTheStart(t *testing.T) {
	for _, test := range []struct{ maximum, after time.Duration }{
		{time.Minute, time.Minute}, {24 * time.Hour, 5 * time.Minute},
	} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld()
			w.add("old", 10, 25*time.Hour)
			c, _ := w.collector(func(o *Options) { o.MaximumAge, o.Settling = test.maximum, 5*time.Minute })
			time.Sleep(test.after - time.Nanosecond)
			if err := c.Collect(t.Context()); err != nil {
				t.Fatal(err)
			}
			w.wantRemoved(t)
			time.Sleep(time.Nanosecond)
			if err := c.Collect(t.Context()); err != nil {
				t.Fatal(err)
			}
			w.wantRemoved(t, "old")
		})
	}
	w := newWorld()
	w.add("old", 950, 25*time.Hour)
	c, _ := w.collector(func(o *Options) { o.MaximumAge, o.Settling = time.Hour, 5*time.Minute })
	if err := c.Collect(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.wantRemoved(t, "old")
}

func TestAnImageThatCannotBeRemovedKeepsNoOther(t *testing.T) {
	w := newWorld()
	w.other = 900
	w.add("stuck", 50, 2*time.Hour)
	w.add("free", 50, time.Hour)
	w.stuck["stuck"] = errors.New("in use")
	c, _ := w.collector(nil)
	if err := c.Collect(t.Context()); err == nil || !strings.Contains(err.Error(), "but freed 50 bytes") {
		t.Errorf("error %v", err)
	}
	w.wantRemoved(t, "free")
}

func TestAFileSystemWithoutSize(t *testing.T) {
	w := newWorld()
	w.capacity = 0
	w.add("unused", 10, time.Hour)
	c, events := w.collector(nil)
	if err := c.Collect(t.Context()); err == nil {
		t.Error("no error")
	}
	w.wantRemoved(t)
	wantEvent(t, events, "Warning InvalidDiskCapacity invalid capacity 0 on image filesystem")
}

// What cannot be saved is no reason to let the disk fill up.
func TestAgesThatCannotBeSaved(t *testing.T) {
	w := newWorld()
	w.saveErr = errors.New("the disk is full")
	w.add("unused", 950, time.Hour)
	c, _ := w.collector(nil)
	if err := c.Collect(t.Context()); err != nil {
		t.Error(err)
	}
	w.wantRemoved(t, "unused")
}

func TestOneCollectionAtATime(t *testing.T) {
	w := newWorld()
	c, _ := w.collector(nil)
	leave, err := c.enter(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := c.DeleteUnused(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("a second one: %v", err)
	}
	leave()
	if err := c.Detect(t.Context()); err != nil {
		t.Errorf("afterwards: %v", err)
	}
}

func TestSize(t *testing.T) {
	for bytes, want := range map[uint64]string{
		0: "0 B", 1023: "1023 B", 1024: "1.0 KiB", 1536: "1.5 KiB", 5 << 20: "5.0 MiB", 3 << 30: "3.0 GiB",
		2 << 40: "2.0 TiB", 5 << 50: "5120.0 TiB",
	} {
		if got := size(bytes); got != want {
			t.Errorf("size(%d) = %q, want %q", bytes, got, want)
		}
	}
}

// A filesystem may have more bytes than a float64 has digits.
func TestALargeFileSystemIsCountedToTheByte(t *testing.T) {
	w := newWorld()
	w.capacity, w.other = 8804889115231209, 8804889115231209-10
	w.stuck["i"] = errors.New("stuck")
	w.add("i", 10, time.Hour)
	c, _ := w.collector(func(o *Options) { o.HighThresholdPercent, o.LowThresholdPercent = 50, 49 })
	err := c.Collect(t.Context())
	if want := "wanted to free 4490493448767916 bytes"; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("error %v, want %q", err, want)
	}
}
