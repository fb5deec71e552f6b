package objects

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	clientcache "k8s.io/client-go/tools/cache"
)

// Times of the watches.
const (
	// watchDelay is how long a watch waits after its object was first named, with as much again
	// as jitter: a burst of pods has better uses for the client's rate than watches of objects
	// that it has just read.
	watchDelay = time.Second
	// watchLife is the least time that the apiserver is asked to keep a watch open.
	watchLife = 30 * time.Minute
)

// watchBackoff is how long a watch that failed waits: a node has many, and an apiserver that
// comes back must not meet all of them at once.
var watchBackoff = wait.Backoff{Duration: 500 * time.Millisecond, Factor: 2, Jitter: 1, Steps: 8, Cap: 30 * time.Second}

// object is a Secret or a ConfigMap.
type object interface {
	comparable
	runtime.Object
	metav1.Object
}

// resource is how objects of one kind are listed and watched.
type resource[T object] struct {
	example   T
	list      func(ctx context.Context, namespace string, o metav1.ListOptions) (runtime.Object, error)
	watch     func(ctx context.Context, namespace string, o metav1.ListOptions) (watch.Interface, error)
	immutable func(T) bool
}

// watches keep the objects of one kind that pods name, one watch an object, as the Node
// authorizer wants it.
type watches[T object] struct {
	life     context.Context
	client   any
	resource resource[T]
	// changed is given the pods that name an object whose content is not what they got.
	changed func(pods []types.UID)
	running sync.WaitGroup

	mu    sync.Mutex
	items map[key]*item[T]
}

// item is one object. Its fields belong to its watches' lock.
type item[T object] struct {
	owner *watches[T]
	key   key
	pods  map[types.UID]bool
	stop  context.CancelFunc
	// start begins the watch before its delay is over.
	start chan struct{}
	// begun: start is closed.
	begun bool
	// synced: value is what the apiserver has, as far as the watch came; zero: there is none.
	synced bool
	value  T
	// asked: a pod was given an answer; given is the version in it, "" when there was none.
	asked bool
	given string
}

func newWatches[T object](life context.Context, client any, r resource[T], changed func([]types.UID)) *watches[T] {
	return &watches[T]{life: life, client: client, resource: r, changed: changed, items: map[key]*item[T]{}}
}

// add makes a pod one of those that name the object.
func (w *watches[T]) add(k key, pod types.UID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	i := w.items[k]
	if i == nil {
		if w.life.Err() != nil {
			return
		}
		ctx, stop := context.WithCancel(w.life) //nolint:gosec // the item calls stop when no pod needs it
		i = &item[T]{owner: w, key: k, pods: map[types.UID]bool{}, stop: stop, start: make(chan struct{})}
		w.items[k] = i
		w.running.Go(func() { i.run(ctx) })
	}
	i.pods[pod] = true
}

// remove takes a pod off; an object that nobody names is watched no longer.
func (w *watches[T]) remove(k key, pod types.UID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	i := w.items[k]
	if i == nil {
		return
	}
	delete(i.pods, pod)
	if len(i.pods) == 0 {
		i.stop()
		delete(w.items, k)
	}
}

// get returns the object as the watch has it; synced is false while the watch knows nothing.
// found is false when the object does not exist.
func (w *watches[T]) get(k key) (value T, found, synced bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	i := w.items[k]
	if i == nil || !i.synced {
		return value, false, false
	}
	var none T
	i.gave(i.value)
	return i.value, i.value != none, true
}

// gave notes an answer that did not come from the watch: what the watch finds to be different
// later is a change. After an answer without an object the watch begins at once, because a
// pod waits for it.
func (w *watches[T]) gave(k key, value T) {
	w.mu.Lock()
	defer w.mu.Unlock()
	i := w.items[k]
	if i == nil || i.synced {
		return
	}
	i.gave(value)
	if i.given == "" && !i.begun {
		i.begun = true
		close(i.start)
	}
}

func (i *item[T]) gave(value T) {
	i.asked, i.given = true, version(value)
}

func version[T object](value T) string {
	var none T
	if value == none {
		return ""
	}
	// A name that was given to another object has another UID; versions are the cluster's.
	return string(value.GetUID()) + "/" + value.GetResourceVersion()
}

// run watches until ctx ends, which it does too once the object says that it never changes.
func (i *item[T]) run(ctx context.Context) {
	delay := time.NewTimer(watchDelay + rand.N(watchDelay))
	defer delay.Stop()
	select {
	case <-ctx.Done():
		return
	case <-i.start:
	case <-delay.C:
	}
	ctx, refusals := quietContext(ctx)
	r, selector := &i.owner.resource, fields.OneTermEqualSelector("metadata.name", i.key.name).String()
	lw := &clientcache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			o.FieldSelector = selector
			if o.ResourceVersion == "0" {
				o.ResourceVersion = "" // an apiserver's cache may be older than what pods were given
			}
			got, err := r.list(ctx, i.key.namespace, o)
			if err == nil {
				refusals.answered()
			}
			return got, err
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.FieldSelector = selector
			got, err := r.watch(ctx, i.key.namespace, o)
			if err == nil {
				refusals.answered()
			}
			return got, err
		},
	}
	clientcache.NewReflectorWithOptions(
		clientcache.ToListWatcherWithWatchListSemantics(lw, i.owner.client), r.example, i,
		clientcache.ReflectorOptions{
			Name:            "object-" + i.key.namespace + "/" + i.key.name,
			MinWatchTimeout: watchLife,
			Backoff:         new(watchBackoff),
		},
	).RunWithContext(ctx)
}

// set takes what the apiserver has now; zero is nothing.
func (i *item[T]) set(value T) {
	var none T
	i.owner.mu.Lock()
	i.value, i.synced = value, true
	var affected []types.UID
	// To a pod that was not given it, because its volumes were there before podsync started,
	// what the watch finds first is no news.
	if i.asked && i.given != version(value) {
		for pod := range i.pods {
			affected = append(affected, pod)
		}
	}
	i.gave(value) // reported once
	if value != none && i.owner.resource.immutable(value) {
		i.stop() // the value stays
	}
	i.owner.mu.Unlock()
	if len(affected) > 0 {
		i.owner.changed(affected)
	}
}

// mine is false for what a client sends that does not know field selectors.
func (i *item[T]) mine(obj any) (T, bool) {
	value, ok := obj.(T)
	return value, ok && value.GetName() == i.key.name && value.GetNamespace() == i.key.namespace
}

// Add implements cache.ReflectorStore.
func (i *item[T]) Add(obj any) error { return i.Update(obj) }

// Update implements cache.ReflectorStore.
func (i *item[T]) Update(obj any) error {
	if value, ok := i.mine(obj); ok {
		i.set(value)
	}
	return nil
}

// Delete implements cache.ReflectorStore.
func (i *item[T]) Delete(obj any) error {
	if _, ok := i.mine(obj); ok {
		var none T
		i.set(none)
	}
	return nil
}

// Replace implements cache.ReflectorStore.
func (i *item[T]) Replace(list []any, _ string) error {
	var value T
	for _, obj := range list {
		if found, ok := i.mine(obj); ok {
			value = found
		}
	}
	i.set(value)
	return nil
}

// Resync implements cache.ReflectorStore.
func (i *item[T]) Resync() error { return nil }
