package allocation

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/microlet/microlet/services/internal/logkey"
	"github.com/microlet/microlet/services/podsync/internal/pod"
)

// A write that failed is tried again after a time between these.
const (
	firstRewrite = time.Second
	lastRewrite  = time.Minute
)

// file writes one of the files, from one goroutine. What comes while a write lasts is written together, so that many
// changes take few writes.
type file struct {
	records records
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

func newFile(to records, value func(types.UID) (pod.Resources, bool), log *slog.Logger) *file {
	return &file{
		records: to, value: value, log: log, dirty: map[types.UID]struct{}{}, awaited: map[types.UID]awaited{},
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
// After an error of the disk they do not stay in the file. If ctx ends first, they may be there.
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
			_ = f.flush() // it is logged
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
	changes := map[types.UID]*pod.Resources{}
	for uid := range dirty {
		changes[uid] = nil
		if r, ok := f.value(uid); ok {
			changes[uid] = &r
		}
	}
	for uid, w := range waiting {
		changes[uid] = &w.resources
	}
	failed := f.records.Write(changes)
	var problem error
	f.mu.Lock()
	for uid, err := range failed {
		problem = err
		f.dirty[uid] = struct{}{} // the file may have what was not granted
	}
	before := f.problem
	f.problem = problem
	f.mu.Unlock()
	for uid, w := range waiting {
		w.done <- failed[uid]
	}
	switch {
	case problem != nil && before == nil:
		f.log.Error("resources of pods cannot be recorded, trying again", logkey.Err, problem)
	case problem == nil && before != nil:
		f.log.Info("resources of pods are recorded again")
	}
	return problem
}

// unwritten returns why the last write failed.
func (f *file) unwritten() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.problem
}
