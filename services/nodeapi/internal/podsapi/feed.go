package podsapi

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"sync"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	podsv1alpha1 "k8s.io/kubelet/pkg/apis/pods/v1alpha1"

	"github.com/microlet/microlet/services/internal/nodepods"
	"github.com/microlet/microlet/services/internal/signal"
)

// maxBehind is how many events a watcher may not have taken, as with the kubelet.
const maxBehind = 100

// Errors of calls, in the words of the kubelet.
var (
	errInitializing = status.Error(codes.FailedPrecondition, "Kubelet is initializing")
	errBehind       = status.Error(codes.ResourceExhausted, "watch client channel closed")
	errWatches      = status.Errorf(codes.ResourceExhausted, "%d clients watch already", maxWatches)
)

// event is a change of a pod. Of a pod that is gone it has the last that was known.
type event struct {
	kind podsv1alpha1.EventType
	pod  *nodepods.Pod
}

// feed has the pods, and the changes that some watcher has not taken. Watchers share the events, of which there are
// maxBehind at most.
type feed struct {
	source  Source
	dropped func()

	mu   sync.Mutex
	pods map[string]*nodepods.Pod // by UID
	// ready: the source was complete once.
	ready bool
	// events are those from the number first on.
	events   []event
	first    uint64
	watchers map[*watcher]struct{}
}

// watcher takes events in their order.
type watcher struct {
	feed *feed
	wake signal.Signal
	// next is the number of the event that it takes next, and behind that it has lost events.
	next   uint64
	behind bool
}

func newFeed(watch func(changed func(uid string)) Source, dropped func()) *feed {
	f := &feed{dropped: dropped, pods: map[string]*nodepods.Pod{}, watchers: map[*watcher]struct{}{}}
	f.mu.Lock() // the first change waits for the source
	defer f.mu.Unlock()
	f.source = watch(f.changed)
	return f
}

// changed takes over what the source has of a pod. The source never has something older than before, so events of a pod
// are in the order of its changes.
func (f *feed) changed(uid string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	now, exists := f.source.Get(uid)
	before, existed := f.pods[uid]
	switch {
	case exists && !existed:
		f.pods[uid] = now
		f.add(event{podsv1alpha1.EventType_ADDED, now})
	case exists && now != before:
		f.pods[uid] = now
		f.add(event{podsv1alpha1.EventType_MODIFIED, now})
	case !exists && existed:
		delete(f.pods, uid)
		f.add(event{podsv1alpha1.EventType_DELETED, before})
	}
}

// add adds an event for the watchers, under f.mu.
func (f *feed) add(e event) {
	if len(f.watchers) == 0 {
		return
	}
	f.events = append(f.events, e)
	end := f.first + uint64(len(f.events))
	for w := range f.watchers {
		if end-w.next > maxBehind {
			w.behind = true
			delete(f.watchers, w)
			f.dropped()
		}
		w.wake.Set()
	}
	f.trim()
}

// trim drops the events that all watchers have taken, under f.mu.
func (f *feed) trim() {
	end := f.first + uint64(len(f.events))
	oldest := end
	for w := range f.watchers {
		oldest = min(oldest, w.next)
	}
	f.events = slices.Delete(f.events, 0, int(oldest-f.first))
	f.first = oldest
}

// isReady reports whether all pods were known at some time, under f.mu.
func (f *feed) isReady() bool {
	f.ready = f.ready || f.source.Synced() && f.source.Complete()
	return f.ready
}

// list returns the pods, ordered by their UID.
func (f *feed) list() ([]*nodepods.Pod, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.listLocked()
}

func (f *feed) listLocked() ([]*nodepods.Pod, error) {
	if !f.isReady() {
		return nil, errInitializing
	}
	list := make([]*nodepods.Pod, 0, len(f.pods))
	for _, p := range f.pods {
		list = append(list, p)
	}
	slices.SortFunc(list, func(a, b *nodepods.Pod) int {
		return cmp.Or(strings.Compare(string(a.UID), string(b.UID)), strings.Compare(a.Name, b.Name))
	})
	return list, nil
}

// get returns the pod of this UID.
func (f *feed) get(uid string) (*nodepods.Pod, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.isReady() {
		return nil, errInitializing
	}
	p, ok := f.pods[uid]
	if !ok {
		return nil, status.Errorf(codes.NotFound, "pod with UID %.100s not found", uid)
	}
	return p, nil
}

// watch returns the pods, and a watcher of what changes after that. The caller ends it.
func (f *feed) watch() ([]*nodepods.Pod, *watcher, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	list, err := f.listLocked()
	if err != nil {
		return nil, nil, err
	}
	if len(f.watchers) >= maxWatches {
		return nil, nil, errWatches
	}
	w := &watcher{feed: f, wake: signal.New(), next: f.first + uint64(len(f.events))}
	f.watchers[w] = struct{}{}
	return list, w, nil
}

// end ends the watcher.
func (w *watcher) end() {
	w.feed.mu.Lock()
	defer w.feed.mu.Unlock()
	delete(w.feed.watchers, w)
	w.feed.trim()
}

// take waits for the next event.
func (w *watcher) take(ctx context.Context) (event, error) {
	for {
		e, ok, err := w.try()
		if ok || err != nil {
			return e, err
		}
		select {
		case <-ctx.Done():
			return event{}, status.FromContextError(ctx.Err()).Err()
		case <-w.wake:
		}
	}
}

func (w *watcher) try() (e event, ok bool, err error) {
	f := w.feed
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case w.behind:
		return event{}, false, errBehind
	case w.next == f.first+uint64(len(f.events)):
		return event{}, false, nil
	}
	e = f.events[w.next-f.first]
	w.next++
	f.trim()
	return e, true, nil
}
