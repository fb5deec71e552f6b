package allocation

import (
	"context"
	"log/slog"
	"maps"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/microlet/microlet/services/internal/logkey"
	"github.com/microlet/microlet/services/podsync/internal/pod"
)

// store is one of the kubelet's files of the resources of pods.
type store interface {
	// Get returns what the file had of a pod when it was opened, or what was written since.
	Get(uid types.UID) (pod.Resources, bool)
	// Update writes a change, and returns when it is on the disk. After an error nothing of it is in the file.
	Update(set map[types.UID]pod.Resources, remove []types.UID) error
	// UIDs returns the pods of the file.
	UIDs() []types.UID
}

// A write that failed is tried again after a time between these.
const (
	firstRewrite = time.Second
	lastRewrite  = time.Minute
)

// file writes one of the files, from one goroutine. What comes while a write lasts is written together, so that many
// changes take few writes.
type file struct {
	store store
	// value is what is known of a pod; false if its entry is to be removed.
	value func(uid types.UID) (pod.Resources, bool)
	log   *slog.Logger

	mu sync.Mutex
	// dirty are the pods whose values are to be written.
	dirty map[types.UID]struct{}
	// awaited are values that count only once they are written.
	awaited map[types.UID]awaited
	signal  chan struct{}
	// problem is why the last write failed; nil if it did not.
	problem error
}

type awaited struct {
	resources pod.Resources
	done      chan error
}

func newFile(store store, value func(types.UID) (pod.Resources, bool), log *slog.Logger) *file {
	return &file{
		store: store, value: value, log: log, dirty: map[types.UID]struct{}{}, awaited: map[types.UID]awaited{},
		signal: make(chan struct{}, 1),
	}
}

// later has the pod's value written soon. A write that fails is repeated.
func (f *file) later(uid types.UID) {
	f.mu.Lock()
	f.dirty[uid] = struct{}{}
	f.mu.Unlock()
	f.wake()
}

// write writes the resources of a pod and returns when they are on the disk. There is one call for a pod at one time.
// After an error of the disk they are not in the file. If ctx ends first, they may be.
func (f *file) write(ctx context.Context, uid types.UID, r pod.Resources) error {
	done := make(chan error, 1)
	f.mu.Lock()
	f.awaited[uid] = awaited{r, done}
	f.mu.Unlock()
	f.wake()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (f *file) wake() {
	select {
	case f.signal <- struct{}{}:
	default:
	}
}

// run writes until ctx ends, and then once more what is left.
func (f *file) run(ctx context.Context) {
	retry := time.NewTimer(0)
	defer retry.Stop()
	delay := firstRewrite
	for {
		select {
		case <-ctx.Done():
			f.flush()
			return
		case <-f.signal:
		case <-retry.C:
		}
		if f.flush() == nil {
			delay = firstRewrite
			continue
		}
		retry.Reset(delay)
		delay = min(2*delay, lastRewrite)
	}
}

// flush writes what is to be written.
func (f *file) flush() error {
	f.mu.Lock()
	dirty, waiting := f.dirty, f.awaited
	f.dirty, f.awaited = map[types.UID]struct{}{}, map[types.UID]awaited{}
	f.mu.Unlock()
	if len(dirty)+len(waiting) == 0 {
		return nil
	}
	set, remove := map[types.UID]pod.Resources{}, []types.UID(nil)
	for uid := range dirty {
		if r, ok := f.value(uid); ok {
			set[uid] = r
		} else {
			remove = append(remove, uid)
		}
	}
	for uid, w := range waiting {
		set[uid] = w.resources
	}
	err := f.store.Update(set, remove)
	f.mu.Lock()
	if err != nil {
		maps.Copy(f.dirty, dirty)
	}
	before := f.problem
	f.problem = err
	f.mu.Unlock()
	for _, w := range waiting {
		w.done <- err
	}
	switch {
	case err != nil && before == nil:
		f.log.Error("resources of pods cannot be recorded, trying again", logkey.Err, err)
	case err == nil && before != nil:
		f.log.Info("resources of pods are recorded again")
	}
	return err
}

// unwritten returns why the last write failed.
func (f *file) unwritten() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.problem
}
