package collector

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"testing"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/microlet/microlet/services/imagegc/internal/ages"
	"github.com/microlet/microlet/services/imagegc/internal/imagenames"
)

// errKilled ends a collection at a random removal, as the kernel ends a process.
var errKilled = errors.New("killed")

// history is what really happened to an image.
type history struct {
	came, used time.Duration
	wasUsed    bool
}

// TestAgainstAModel lets a node live with 500 images while its disk fills: pods come and go, images are pulled, the
// node reboots, and imagegc is killed at random. No image that a pod needs is ever removed, those that go are the least
// recently used ones, and the ages after each restart are those of a model that forgets nothing.
func TestAgainstAModel(t *testing.T) {
	for seed := range uint64(3) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			n := newModelNode(t, rand.New(rand.NewPCG(seed, 1)))
			for range 200 {
				n.live()
			}
			if n.collections == 0 || n.kills == 0 || n.reboots == 0 {
				t.Errorf("%d collections, %d kills, %d reboots", n.collections, n.kills, n.reboots)
			}
		})
	}
}

type modelNode struct {
	*world
	t     *testing.T
	r     *rand.Rand
	path  string
	boot  ages.Boot
	ran   time.Duration // for which the node has run
	saved time.Duration // ran when the ages were saved last
	truth map[string]*history
	store *ages.Store

	pulled, collections, kills, reboots int
	// killAfter is how many removals imagegc survives; below 0 it is not killed.
	killAfter int
}

func newModelNode(t *testing.T, r *rand.Rand) *modelNode {
	n := &modelNode{
		world: newWorld(), t: t, r: r, path: filepath.Join(t.TempDir(), "ages.json"),
		boot: ages.Boot{ID: "0"}, truth: map[string]*history{}, killAfter: -1,
	}
	n.capacity = 10000
	n.restart()
	for range 500 {
		n.pull()
	}
	n.detect()
	return n
}

func (n *modelNode) restart() {
	n.t.Helper()
	n.ran = n.saved + min(n.ran-n.saved, 10*time.Minute) // of the time since, so much counts
	var err error
	n.store, err = ages.Open(ages.Options{
		Path: n.path, Boot: func() (ages.Boot, error) { return n.boot, nil }, Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		n.t.Fatal(err)
	}
	for id, got := range n.store.Of() {
		h := n.truth[id]
		if h == nil {
			continue // it was removed, and imagegc killed before it saw that
		}
		want := ages.Age{Detected: n.ran - h.came, Unused: n.ran - h.came, Used: h.wasUsed}
		if h.wasUsed {
			want.Unused = n.ran - h.used
		}
		if got != want {
			n.t.Fatalf("after a restart %s is %+v, want %+v", id, got, want)
		}
	}
}

// Remove implements Runtime, and dies where it is to.
func (n *modelNode) Remove(ctx context.Context, id string) error {
	if n.killAfter == 0 {
		return errKilled
	}
	n.killAfter--
	if n.isNeeded(id) {
		n.t.Fatalf("%s is removed, which a pod needs", id)
	}
	delete(n.truth, id)
	return n.world.Remove(ctx, id)
}

func (n *modelNode) isNeeded(id string) bool {
	return n.named.Has("registry.example/"+id+":1") ||
		slices.ContainsFunc(n.containers, func(c *runtimeapi.Container) bool { return c.GetImageId() == id })
}

func (n *modelNode) pull() {
	id := fmt.Sprintf("i%05d", n.pulled)
	n.pulled++
	n.images = append(n.images, &runtimeapi.Image{
		Id: id, Size: uint64(5 + n.r.IntN(10)), RepoTags: []string{"registry.example/" + id + ":1"},
	})
}

// detect is imagegc's regular look at the images, after which the model knows the same.
func (n *modelNode) detect() {
	n.t.Helper()
	c := n.collector()
	if err := c.Detect(n.t.Context()); err != nil {
		n.t.Fatal(err)
	}
	n.seen()
}

// seen records in the model what a look at the images has shown.
func (n *modelNode) seen() {
	n.saved = n.ran
	for _, image := range n.images {
		h := n.truth[image.GetId()]
		if h == nil {
			h = &history{came: n.ran}
			n.truth[image.GetId()] = h
		}
		if slices.ContainsFunc(n.containers, func(c *runtimeapi.Container) bool { return c.GetImageId() == image.GetId() }) {
			h.used, h.wasUsed = n.ran, true
		}
	}
}

func (n *modelNode) collector() *Collector {
	c, _ := n.world.collector(func(o *Options) { o.Runtime, o.Ages = n, n.store })
	return c
}

// live lets some minutes pass in which something happens.
func (n *modelNode) live() {
	n.t.Helper()
	d := time.Duration(1+n.r.IntN(600)) * time.Second
	n.ran, n.boot.Uptime = n.ran+d, n.boot.Uptime+d
	for range n.r.IntN(4) {
		n.pull()
	}
	n.containers, n.named = nil, imagenames.Set{}
	for range 40 {
		image := n.images[n.r.IntN(len(n.images))]
		if n.r.IntN(3) == 0 { // a pod that has not started yet
			n.named[imagenames.Normal(image.GetRepoTags()[0])] = true
		} else {
			n.containers = append(n.containers, &runtimeapi.Container{ImageId: image.GetId()})
		}
	}
	switch n.r.IntN(8) {
	case 0:
		n.restart()
	case 1:
		n.reboots++
		n.boot = ages.Boot{ID: fmt.Sprint(n.reboots)}
		n.ran = n.saved // how long the node ran after that is not known
		n.restart()
	case 2, 3:
		n.detect()
	default:
		n.collect()
	}
}

// collect fills the disk and lets imagegc remove what it does, with a kill now and then.
func (n *modelNode) collect() {
	n.t.Helper()
	n.seen()
	var images uint64
	for _, image := range n.images {
		images += image.GetSize()
	}
	n.other = uint64(n.r.IntN(int(n.capacity - images)))
	n.killAfter = -1
	if n.r.IntN(3) == 0 {
		n.killAfter = n.r.IntN(5)
	}
	before := len(n.removed)
	last := map[string]history{}
	for id, h := range n.truth {
		last[id] = *h
	}
	err := n.collector().Collect(n.t.Context())
	n.collections++
	if errors.Is(err, errKilled) {
		n.kills++
		n.killAfter = -1
		n.restart()
		return
	}
	gone := n.removed[before:]
	for i := 1; i < len(gone); i++ {
		if a, b := last[gone[i-1]], last[gone[i]]; a.wasUsed && !b.wasUsed || a.wasUsed == b.wasUsed && a.used > b.used {
			n.t.Fatalf("%s (%+v) goes before %s (%+v)", gone[i-1], a, gone[i], b)
		}
	}
	u, _ := n.Usage(n.t.Context(), "")
	if percent := usedPercent(u); err == nil && percent >= 85 || len(gone) > 0 && err == nil && percent > 80 {
		n.t.Fatalf("%d%% are used after a collection that removed %d images", percent, len(gone))
	}
}
