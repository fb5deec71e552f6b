package twins

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
	kubecontainer "k8s.io/kubernetes/pkg/kubelet/container"
	"k8s.io/kubernetes/pkg/kubelet/images"

	retentionv1 "github.com/microlet/microlet/proto/microlet/imageretentionplugin/v1"
	"github.com/microlet/microlet/services/imagegc/twins"
)

// disk is a node's images, and how full their filesystem is.
type disk struct {
	// DeleteUnused: all that is unused is to go, whatever the thresholds.
	DeleteUnused        bool
	High, Low           int
	MinAge, MaxAge      time.Duration
	Capacity, Available uint64
	// Up is for how long images have been collected.
	Up     time.Duration
	Images []diskImage
	// Spares says that an image which was never used is judged by the time since it came.
	Spares bool
}

// diskImage is one of them.
type diskImage struct {
	ID   string
	Size uint64
	// Detected is how long ago it came, and Used how long ago it was used last: negative if it never was.
	Detected, Used time.Duration
	// New: it was not there when images were looked at last.
	New, Pinned bool
	// Container uses it, Volume mounts it, and Named is in a pod that has not started.
	Container, Volume, Named bool
	// Stuck: the runtime does not remove it.
	Stuck bool
}

// collected is what was done.
type collected struct {
	// Removals were asked of the runtime.
	Removals []string
	Events   []string
	Err      string
}

var _ = register(Pair[disk, collected]{
	Name:     "images",
	Generate: drawDisk,
	Upstream: kubeletCollects,
	Ours:     weCollect,
	Branches: diskBranches,
	Wanted: []string{"removes nothing", "removes for age", "removes for age and for space", "removes for space",
		"deletes what is unused", "keeps one that is new", "frees too little", "fails to remove", "has no capacity"},
	Differences: []Difference[disk, collected]{
		{Name: "waits for its pods after a start, not for the whole age", As: func(in disk) (disk, bool) {
			differs := in.MaxAge > 0 && in.Up <= in.MaxAge && !in.settles()
			if differs {
				in.Up = in.MaxAge + time.Minute
			}
			return in, differs
		}},
		{Name: "counts an image that was never used from when it came", As: func(in disk) (disk, bool) {
			in.Spares = slices.ContainsFunc(in.Images, in.isYoung)
			return in, in.Spares
		}},
		{Name: "removes nothing for no bytes", As: func(in disk) (disk, bool) {
			wanted := in.Capacity/100*uint64(100-in.Low) + in.Capacity%100*uint64(100-in.Low)/100
			if in.Capacity == 0 || in.Available != wanted {
				return in, false
			}
			in.Available++ // it is below the high threshold now
			return in, true
		}},
		{Name: "keeps what a pod names", As: func(in disk) (disk, bool) {
			named := false
			in.Images = slices.Clone(in.Images)
			for i := range in.Images {
				named = named || in.Images[i].Named
				in.Images[i].Pinned = in.Images[i].Pinned || in.Images[i].Named
			}
			return in, named
		}},
	},
	Break: func(_ disk, out *collected) {
		if len(out.Removals) > 1 {
			slices.Reverse(out.Removals)
		}
	},
})

// settling is how long a collection by age waits for the node's pods.
const settling = 5 * time.Minute

func (in disk) settles() bool { return in.Up < min(settling, in.MaxAge) }

// isYoung reports whether an image was never used and came within the maximum age.
func (in disk) isYoung(i diskImage) bool {
	return in.MaxAge > 0 && i.Used < 0 && (i.New || i.Detected <= in.MaxAge)
}

// drawDisk draws images of which no two have the same age: the kubelet's order of these is random.
func drawDisk(s *Source) disk {
	in := disk{DeleteUnused: s.Percent(15), High: OneOf(s, 85, 100, 50, 1), Up: time.Duration(s.Intn(200)) * time.Minute}
	in.Low = in.High - OneOf(s, 1, 5, 20)
	in.Low = max(in.Low, 0)
	in.MinAge = time.Duration(OneOf(s, 2, 0, 60)) * time.Minute
	if s.Percent(60) {
		in.MaxAge = in.MinAge + time.Duration(OneOf(s, 1, 3, 30, 90))*time.Minute
	}
	unit := OneOf(s, uint64(1), 1, 1<<20, 1<<30, 999_999_999_937, 1<<43+1)
	in.Capacity = uint64(OneOf(s, 1000, 1000, 999, 1001, 0)) * unit
	in.Available = uint64(s.Intn(1001))
	in.Available = min(in.Available*unit+uint64(s.Intn(3)), in.Capacity)
	for i := range s.Intn(9) {
		// Half a minute apart from all limits, and each second of its own.
		image := diskImage{
			ID: fmt.Sprintf("sha256:%064d", i), Size: uint64(OneOf(s, 10, 1, 50, 100, 0)) * unit,
			Detected: time.Duration(s.Intn(120))*time.Minute + 30*time.Second + time.Duration(i)*time.Second, Used: -1,
			Pinned: s.Percent(8), Container: s.Percent(15), Volume: s.Percent(8), Named: s.Percent(8), Stuck: s.Percent(5),
		}
		if s.Percent(50) {
			image.Used = min(time.Duration(s.Intn(120))*time.Minute+30*time.Second+time.Duration(i)*time.Second,
				image.Detected)
		}
		if i == 0 && s.Percent(20) {
			image.New, image.Detected, image.Used = true, 0, -1
		}
		in.Images = append(in.Images, image)
	}
	return in
}

func diskBranches(in disk, out collected) []string {
	age, space := false, false
	for _, removal := range out.Removals {
		i := in.image(removal)
		old := in.MaxAge > 0 && in.Up > in.MaxAge && !in.DeleteUnused && (i.Used < 0 || i.Used > in.MaxAge)
		age, space = age || old, space || !old
	}
	isNew := func(i diskImage) bool {
		return i.Detected < in.MinAge && !i.Pinned && !i.Container && !i.Volume && !slices.Contains(out.Removals, i.ID)
	}
	var did []string
	for _, b := range []struct {
		name string
		done bool
	}{
		{"removes nothing", len(out.Removals) == 0},
		{"removes for age", age && !space},
		{"removes for age and for space", age && space},
		{"removes for space", space && !age && !in.DeleteUnused},
		{"deletes what is unused", space && in.DeleteUnused},
		{"keeps one that is new", space && slices.ContainsFunc(in.Images, isNew)},
		{"frees too little", strings.HasPrefix(out.Err, "Insufficient")},
		{"fails to remove", strings.Contains(out.Err, "encountered errors") || strings.Contains(out.Err, "with errors")},
		{"has no capacity", strings.HasPrefix(out.Err, "invalid capacity")},
	} {
		if b.done {
			did = append(did, b.name)
		}
	}
	return did
}

func (in disk) image(id string) *diskImage {
	for i := range in.Images {
		if in.Images[i].ID == id {
			return &in.Images[i]
		}
	}
	return nil
}

func (i *diskImage) tag() string { return "registry.example/" + i.ID[len(i.ID)-4:] + ":1" }

// node answers for the runtime, to either side, and notes what is done.
type node struct {
	kubecontainer.Runtime
	in  disk
	did collected
}

func (n *node) remove(id string) error {
	n.did.Removals = append(n.did.Removals, id)
	if n.in.image(id).Stuck {
		return errors.New("stuck")
	}
	n.in.Images = slices.DeleteFunc(slices.Clone(n.in.Images), func(i diskImage) bool { return i.ID == id })
	return nil
}

// outcome is what was done. The runtime's message is worded differently.
func (n *node) outcome(err error) collected {
	if err != nil {
		n.did.Err, _, _ = strings.Cut(err.Error(), " image deletion: ")
	}
	return n.did
}

func (n *node) Event(_ runtime.Object, kind, reason, message string) {
	n.did.Events = append(n.did.Events, kind+" "+reason+" "+message)
}

func (n *node) Eventf(o runtime.Object, kind, reason, format string, args ...any) {
	n.Event(o, kind, reason, fmt.Sprintf(format, args...))
}

func (n *node) AnnotatedEventf(o runtime.Object, _ map[string]string, kind, reason, format string, args ...any) {
	n.Eventf(o, kind, reason, format, args...)
}

func kubeletCollects(in disk) collected {
	n := &node{in: in}
	now := time.Now()
	detected, used, spared := map[string]time.Time{}, map[string]time.Time{}, map[string]bool{}
	for _, i := range in.Images {
		if !i.New {
			detected[i.ID] = now.Add(-i.Detected)
		}
		if i.Used >= 0 {
			used[i.ID] = now.Add(-i.Used)
		}
		spared[i.ID] = in.Spares && in.isYoung(i)
	}
	t, err := images.NewTwinImages(kubeletNode{n}, n, n, images.ImageGCPolicy{
		HighThresholdPercent: in.High, LowThresholdPercent: in.Low, MinAge: in.MinAge, MaxAge: in.MaxAge,
	}, detected, used)
	if err != nil {
		panic(err)
	}
	ctx := context.Background()
	began := now.Add(-in.Up - 30*time.Second)
	switch {
	case in.DeleteUnused:
		err = t.DeleteUnused(ctx)
	case in.Spares:
		err = t.CollectSparing(ctx, began, spared)
	default:
		err = t.Collect(ctx, began)
	}
	return n.outcome(err)
}

func (n *node) ImageFsStats(context.Context) (*statsapi.FsStats, *statsapi.FsStats, error) {
	stats := &statsapi.FsStats{CapacityBytes: &n.in.Capacity, AvailableBytes: &n.in.Available}
	return stats, stats, nil
}

// kubeletNode is the kubelet's view of it.
type kubeletNode struct{ *node }

func (n kubeletNode) ListImages(context.Context) ([]kubecontainer.Image, error) {
	var all []kubecontainer.Image
	for _, i := range n.in.Images {
		all = append(all, kubecontainer.Image{ID: i.ID, Size: int64(i.Size), Pinned: i.Pinned})
	}
	return all, nil
}

func (n kubeletNode) GetPods(context.Context, bool) ([]*kubecontainer.Pod, error) {
	p := &kubecontainer.Pod{}
	for _, i := range n.in.Images {
		if i.Container {
			p.Containers = append(p.Containers, &kubecontainer.Container{ImageID: i.ID})
		}
	}
	// One that has all volumes.
	p.Containers = append(p.Containers, &kubecontainer.Container{ImageID: "sha256:gone", ID: kubeID("mounts")})
	return []*kubecontainer.Pod{p}, nil
}

func (n kubeletNode) GetContainerStatus(_ context.Context, _ types.UID, id kubecontainer.ContainerID) (
	*kubecontainer.Status, error) {
	status := &kubecontainer.Status{}
	for _, i := range n.in.Images {
		if i.Volume && id.ID == "mounts" {
			status.Mounts = append(status.Mounts, kubecontainer.Mount{Image: &runtimeapi.ImageSpec{Image: i.ID}})
		}
	}
	return status, nil
}

func (n kubeletNode) RemoveImage(_ context.Context, image kubecontainer.ImageSpec) error {
	return n.remove(image.Image)
}

func weCollect(in disk) collected {
	n := &node{in: in}
	o := imagegc.Options{
		Runtime: ourNode{n}, Ages: ourAges{n, map[string]bool{}}, FileSystem: ourNode{n}, Pods: ourNode{n},
		Retention: ourNode{n}, HighThresholdPercent: in.High, LowThresholdPercent: in.Low, MinimumAge: in.MinAge,
		MaximumAge: in.MaxAge, Events: n, Node: &v1.ObjectReference{}, Log: slog.New(slog.DiscardHandler),
		Metrics: prometheus.NewRegistry(),
	}
	if in.settles() {
		o.Settling = settling // as much as is left is more than the collection takes
	}
	c := imagegc.New(o)
	if in.DeleteUnused {
		_, err := c.DeleteUnused(context.Background())
		return n.outcome(err)
	}
	return n.outcome(c.Collect(context.Background()))
}

// ourNode is our view of it.
type ourNode struct{ *node }

func (n ourNode) Images(context.Context) ([]*runtimeapi.Image, error) {
	var all []*runtimeapi.Image
	for _, i := range n.in.Images {
		all = append(all, &runtimeapi.Image{Id: i.ID, Size: i.Size, Pinned: i.Pinned, RepoTags: []string{i.tag()}})
	}
	return all, nil
}

func (n ourNode) Containers(context.Context) ([]*runtimeapi.Container, error) {
	var all []*runtimeapi.Container
	for _, i := range n.in.Images {
		if i.Container {
			all = append(all, &runtimeapi.Container{
				ImageId: i.ID, ImageRef: i.ID, Image: &runtimeapi.ImageSpec{Image: i.tag()},
			})
		}
	}
	return all, nil
}

func (n ourNode) Remove(_ context.Context, id string) error { return n.remove(id) }

func (n ourNode) ImageRoot(context.Context) (string, error) { return "/", nil }

func (n ourNode) Usage(context.Context, string) (imagegc.Usage, error) {
	return imagegc.Usage{Capacity: n.in.Capacity, Available: n.in.Available}, nil
}

func (n ourNode) Named() (imagegc.Names, error) {
	return n.names(func(i diskImage) bool { return i.Named || i.Volume }), nil
}

func (n ourNode) Mounted() (imagegc.Names, error) {
	return n.names(func(i diskImage) bool { return i.Volume }), nil
}

func (n ourNode) names(of func(diskImage) bool) imagegc.Names {
	names := imagegc.Names{}
	for _, i := range n.in.Images {
		if of(i) {
			names[imagegc.Normal(i.tag())] = true
		}
	}
	return names
}

func (n ourNode) Keep(context.Context, []*retentionv1.KeepRequest_Image) (map[string]bool, error) {
	return nil, nil
}

// ourAges is a store of ages that keeps no file.
type ourAges struct {
	n    *node
	used map[string]bool
}

func (a ourAges) See(_ []string, used map[string]bool) error {
	maps.Copy(a.used, used)
	return nil
}

func (a ourAges) Forget(string) {}

func (a ourAges) Of() map[string]imagegc.Age {
	all := map[string]imagegc.Age{}
	for _, i := range a.n.in.Images {
		age := imagegc.Age{Detected: i.Detected, Unused: i.Detected}
		if i.Used >= 0 {
			age.Used, age.Unused = true, i.Used
		}
		if a.used[i.ID] {
			age.Used, age.Unused = true, 0
		}
		all[i.ID] = age
	}
	return all
}
