package objects

import (
	"context"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	clientcache "k8s.io/client-go/tools/cache"

	"github.com/microlet/microlet/services/internal/logkey"
	"github.com/microlet/microlet/services/internal/shares"
)

// Times of the watches.
const (
	// watchDelay is how long a watch waits after its object was first named, with as much again
	// as jitter: a burst of pods has better uses for the client's rate than watches of objects
	// that it has just read.
	watchDelay = time.Second
	// maxOpening is how many watches of a kind open at one time. The client lets so many requests a second through, in
	// their order: what a pod waits for must not come after the watches of all objects that others name.
	// Namespaces share these.
	maxOpening = 8
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
	// changed is given the pods that name an object if its content is not what they got.
	changed func(pods []types.UID)
	// patience is how long an immutable object serves after an attempt to read it again has failed.
	patience time.Duration
	log      *slog.Logger
	running  sync.WaitGroup
	// opening has a place for each watch that opens.
	opening *shares.Places

	mu    sync.Mutex
	items map[key]*item[T]
	// counts are the numbers of items by namespace.
	counts map[string]int
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
	// settled: value is immutable, and the watch has ended.
	settled bool
	// namings counts the pods that have begun to name the object. So many had when the last request of the watch began
	// (opened), and when value was read (confirmed).
	namings, opened, confirmed int
	// failed is when a settled object could not be read again; zero for never.
	failed time.Time
}

// answer is what the watches know of an object.
type answer[T object] struct {
	// value is zero when the object does not exist.
	value T
	// known: the apiserver need not be asked.
	known bool
	// namings is how many pods have begun to name the object by now.
	namings int
}

func newWatches[T object](life context.Context, client any, r resource[T], o Options) *watches[T] {
	changed := func(pods []types.UID) {
		for _, uid := range pods {
			o.Changed(uid)
		}
	}
	return &watches[T]{
		life: life, client: client, resource: r, changed: changed, patience: o.Timeout, log: o.Log,
		opening: shares.New(maxOpening), items: map[key]*item[T]{},
		counts: map[string]int{},
	}
}

// add makes a pod one of those that name the object.
func (w *watches[T]) add(k key, pod types.UID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	i := w.items[k]
	if i == nil {
		if w.counts[k.namespace] >= maxOfNamespace {
			return
		}
		if i = w.begin(k); i == nil {
			return
		}
		w.counts[k.namespace]++
	}
	i.pods[pod] = true
	i.namings++
}

// begin begins to watch an object; nil when the service ends.
func (w *watches[T]) begin(k key) *item[T] {
	if w.life.Err() != nil {
		return nil
	}
	ctx, stop := context.WithCancel(w.life) //nolint:gosec // the item calls stop when no pod needs it
	i := &item[T]{owner: w, key: k, pods: map[types.UID]bool{}, stop: stop, start: make(chan struct{})}
	w.items[k] = i
	w.running.Go(func() { i.run(ctx) })
	return i
}

// remove takes a pod off; an object that no pod names is watched no longer.
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
		if w.counts[k.namespace]--; w.counts[k.namespace] == 0 {
			delete(w.counts, k.namespace)
		}
	}
}

// get returns the object as the watch has it. One that is immutable is known to the pods that named it when it was
// read: it may have been deleted since, and created again.
func (w *watches[T]) get(k key) answer[T] {
	w.mu.Lock()
	defer w.mu.Unlock()
	i := w.items[k]
	switch {
	case i == nil:
		return answer[T]{}
	case !i.synced,
		i.settled && i.confirmed < i.namings && (i.failed.IsZero() || time.Since(i.failed) >= w.patience):
		return answer[T]{namings: i.namings}
	}
	i.gave(i.value)
	return answer[T]{value: i.value, known: true}
}

// read takes what the apiserver answered because the watches did not know the object, and returns what to give to the
// pod. What the watch finds to be different later is a change. After an answer without an object the watch begins at
// once, because a pod waits for it.
func (w *watches[T]) read(k key, before answer[T], value T, err error) (T, error) {
	w.mu.Lock()
	i := w.items[k]
	var affected []types.UID
	switch {
	case i == nil:
	case i.settled && err != nil && !apierrors.IsNotFound(err):
		if i.failed.IsZero() {
			w.log.Warn("immutable object could not be read again, the version that was read last serves",
				logkey.Namespace, k.namespace, logkey.Name, k.name, logkey.Err, err)
		}
		i.failed = time.Now()
		value, err = i.value, nil
	case i.settled && before.namings > i.confirmed:
		affected = i.confirm(value, before.namings)
	case !i.synced:
		i.gave(value)
		i.hurry()
	}
	w.mu.Unlock()
	if len(affected) > 0 {
		w.changed(affected)
	}
	return value, err
}

// confirm takes the object as it is now for one that was immutable, and returns the pods that have another one. If it
// may change again, or does not exist, it is watched again.
func (i *item[T]) confirm(value T, namings int) (affected []types.UID) {
	affected = i.others(value)
	var none T
	if value != none && i.owner.resource.immutable(value) {
		i.value, i.confirmed, i.failed = value, namings, time.Time{}
		i.gave(value)
		return affected
	}
	if again := i.owner.begin(i.key); again != nil {
		again.pods, again.namings = i.pods, i.namings
		again.gave(value)
		again.hurry()
	}
	return affected
}

// hurry begins the watch now if a pod was given no object.
func (i *item[T]) hurry() {
	if i.given == "" && !i.begun {
		i.begun = true
		close(i.start)
	}
}

// others returns the pods that were given another version. To a pod that was given none, because its volumes were there
// before podsync started, what is found first is no news.
func (i *item[T]) others(value T) []types.UID {
	if !i.asked || i.given == version(value) {
		return nil
	}
	return slices.Collect(maps.Keys(i.pods))
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
	ctx, refusals := quietContext(shares.WithOwner(ctx, i.key.namespace))
	r, selector := &i.owner.resource, fields.OneTermEqualSelector("metadata.name", i.key.name).String()
	lw := &clientcache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			o.FieldSelector = selector
			opened, err := i.owner.opening.Take(ctx, i.key.namespace)
			if err != nil {
				return nil, err
			}
			defer opened()
			i.opens()
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
			opened, err := i.owner.opening.Take(ctx, i.key.namespace)
			if err != nil {
				return nil, err
			}
			defer opened()
			i.opens()
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

// opens notes that a request of the watch begins.
func (i *item[T]) opens() {
	i.owner.mu.Lock()
	defer i.owner.mu.Unlock()
	i.opened = i.namings
}

// set takes what the apiserver has now; zero is nothing.
func (i *item[T]) set(value T) {
	var none T
	i.owner.mu.Lock()
	i.value, i.synced = value, true
	affected := i.others(value)
	i.gave(value) // reported once
	if value != none && i.owner.resource.immutable(value) {
		i.settled, i.confirmed = true, i.opened
		i.stop()
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
