package nodepods

import (
	"log/slog"
	"maps"
	"sync"

	"github.com/microlet/microlet/proto/subject"
	"github.com/microlet/microlet/services/internal/bus"
	"github.com/microlet/microlet/services/internal/logkey"
)

// bucket is a bucket as a view of the bus shows it; see bus.View.
type bucket[M any] interface {
	Get(key string) (M, bool)
	Synced() bool
	Complete() bool
	Traceparent(key string) string
}

// View has the node's pods. Its methods may be called from any goroutine.
type View struct {
	pods bucket[*entry]
	// statuses is nil in a view without status.
	statuses bucket[*report]
	changed  func(uid string)
	log      *slog.Logger

	mu     sync.RWMutex
	joined map[string]*Pod // by UID
}

// Watch returns the pods with their status, once the client runs. changed, if not nil, is called after a pod has
// changed or is gone. It may be called from two goroutines, which it must not block.
func Watch(c *bus.Client, log *slog.Logger, changed func(uid string)) *View {
	return watch(c, log, changed, true)
}

// WatchWithoutStatus is Watch for a service that reads PODS alone. Its pods have no report of podsync.
func WatchWithoutStatus(c *bus.Client, log *slog.Logger, changed func(uid string)) *View {
	return watch(c, log, changed, false)
}

func watch(c *bus.Client, log *slog.Logger, changed func(uid string), status bool) *View {
	v := &View{changed: changed, log: log, joined: map[string]*Pod{}}
	v.mu.Lock() // the first change waits until both buckets are watched
	defer v.mu.Unlock()
	v.pods = bus.WatchDecoded(c, subject.Pods, ">", decodePod, v.change)
	if status {
		v.statuses = bus.WatchDecoded(c, subject.PodStatus, ">", decodeStatus, v.change)
	}
	return v
}

// change joins a pod once more. It reads both entries under the lock, so the last of two calls has the newest of both.
func (v *View) change(uid string) {
	if p := v.rejoin(uid); p != nil && p.Err != nil {
		v.log.Error("a pod of the bus cannot be read", logkey.PodUID, uid, logkey.Err, p.Err)
	}
	if v.changed != nil {
		v.changed(uid)
	}
}

func (v *View) rejoin(uid string) *Pod {
	v.mu.Lock()
	defer v.mu.Unlock()
	e, ok := v.pods.Get(uid)
	if !ok {
		delete(v.joined, uid)
		return nil
	}
	var r *report
	if v.statuses != nil {
		r, _ = v.statuses.Get(uid)
	}
	p := join(e, r)
	v.joined[uid] = p
	return p
}

// Get returns the pod of this UID.
func (v *View) Get(uid string) (*Pod, bool) {
	v.mu.RLock()
	defer v.mu.RUnlock()
	p, ok := v.joined[uid]
	return p, ok
}

// All returns the pods by their UID, also those that cannot be read. The map is the caller's.
func (v *View) All() map[string]*Pod {
	v.mu.RLock()
	defer v.mu.RUnlock()
	return maps.Clone(v.joined)
}

// Synced reports whether the view has all pods and their status. It is false before that, and while the bus is away.
func (v *View) Synced() bool {
	return v.pods.Synced() && (v.statuses == nil || v.statuses.Synced())
}

// Complete reports whether podsync has said that it has published all pods of all sources, and the status of each. It
// stays true, also while a restarted podsync has not heard its sources yet: until then, the view has the pods of
// before.
func (v *View) Complete() bool {
	return v.pods.Complete() && (v.statuses == nil || v.statuses.Complete())
}

// Traceparent returns that of the span in which the pod's status was reported; empty if there is none.
func (v *View) Traceparent(uid string) string {
	if v.statuses == nil {
		return ""
	}
	return v.statuses.Traceparent(uid)
}
