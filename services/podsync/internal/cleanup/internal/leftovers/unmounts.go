package leftovers

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/microlet/microlet/services/internal/logkey"
	"github.com/microlet/microlet/services/podsync/internal/pod"
)

const (
	// unmountTimeout is what the unmount of one pod's volumes and the removal of its folder may take. An unmount that
	// hangs ends before; a folder with many files waits for its turn.
	unmountTimeout = 10 * time.Minute
	// unmountsAtOnce is how many pods' volumes are unmounted at one time, without those that take longer than
	// unmountSlow: however many hang, the others have their turn.
	unmountsAtOnce = 8
	unmountSlow    = 2 * time.Second
)

// unmounts are the pods with volumes that are being unmounted. Of one pod one unmount is under way at a time.
type unmounts struct {
	places chan struct{}
	all    sync.WaitGroup

	mu       sync.Mutex
	underWay map[types.UID]bool
	// failed are the pods of which the last unmount has failed, cleaned is how many have succeeded in this round.
	failed  map[types.UID]bool
	cleaned int
}

func newUnmounts() *unmounts {
	return &unmounts{
		places: make(chan struct{}, unmountsAtOnce), underWay: map[types.UID]bool{}, failed: map[types.UID]bool{},
	}
}

// wait waits for all that are under way. Nothing begins one meanwhile.
func (u *unmounts) wait() { u.all.Wait() }

// round begins the count of a round. Pods that are orphans no more have not failed.
func (u *unmounts) round(orphans []types.UID) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.cleaned = 0
	maps.DeleteFunc(u.failed, func(uid types.UID, _ bool) bool { return !slices.Contains(orphans, uid) })
}

// begin reports whether none of the pod is under way, and notes one then.
func (u *unmounts) begin(uid types.UID) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.underWay[uid] {
		return false
	}
	u.underWay[uid] = true
	return true
}

func (u *unmounts) end(uid types.UID) {
	u.mu.Lock()
	defer u.mu.Unlock()
	delete(u.underWay, uid)
}

// result notes what an unmount has come to.
func (u *unmounts) result(uid types.UID, err error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if err != nil {
		u.failed[uid] = true
		return
	}
	delete(u.failed, uid)
	u.cleaned++
}

// show sets the metrics.
func (u *unmounts) show(m *Metrics) {
	u.mu.Lock()
	defer u.mu.Unlock()
	m.volumes.Set(float64(u.cleaned))
	m.volumeErrors.Set(float64(len(u.failed)))
}

// place waits for a place among those that are under way, and is false if ctx ends first. A place is given back after
// a while even if the unmount goes on.
func (u *unmounts) place(ctx context.Context) (giveBack func(), ok bool) {
	select {
	case u.places <- struct{}{}:
	case <-ctx.Done():
		return nil, false
	}
	free := sync.OnceFunc(func() { <-u.places })
	timer := time.AfterFunc(unmountSlow, free)
	return func() {
		timer.Stop()
		free()
	}, true
}

// volumes begins to unmount the volumes of pods that are not needed, and waits for none of them.
func (c *Cleanup) volumes(ctx context.Context, states map[types.UID]*pod.State) error {
	pods, err := c.Volumes.Orphans()
	if err != nil {
		return err
	}
	orphans := slices.DeleteFunc(pods, func(uid types.UID) bool { return !c.orphan(uid, states) })
	c.unmounts.round(orphans)
	c.unmounts.show(c.Metrics)
	for _, uid := range orphans {
		if c.unmounts.begin(uid) {
			c.unmounts.all.Go(func() { c.unmount(ctx, uid) })
		}
	}
	return nil
}

// unmount unmounts the volumes of one pod.
func (c *Cleanup) unmount(ctx context.Context, uid types.UID) {
	defer c.unmounts.end(uid)
	giveBack, ok := c.unmounts.place(ctx)
	if !ok {
		return
	}
	defer giveBack()
	if c.Pods.Known(uid) || ctx.Err() != nil {
		return // it has come meanwhile, and its volumes are its worker's; or podsync ends
	}
	within, cancel := context.WithTimeout(ctx, unmountTimeout)
	defer cancel()
	err := c.Volumes.Unmount(within, uid)
	if ctx.Err() != nil {
		return // the next podsync goes on
	}
	if err != nil {
		c.Log.Error("clean-up incomplete", logkey.PodUID, uid, logkey.Err, err)
	}
	c.unmounts.result(uid, err)
	c.unmounts.show(c.Metrics)
}
