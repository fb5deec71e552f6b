package objects

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/microlet/microlet/services/internal/logkey"
)

const (
	defaultTTL     = time.Minute
	defaultTimeout = 10 * time.Second
	// maxWatched is how many objects of each kind are watched for one pod. What else it names is read again when it is
	// older than the TTL, as with Cache: each watch costs memory, and a place among the requests of all pods.
	maxWatched = 256
	// maxOfNamespace is how many objects of each kind are watched for all pods of a namespace.
	maxOfNamespace = 2048
)

// Strategies of configMapAndSecretChangeDetectionStrategy.
const (
	// Watch keeps a watch on each object that a pod of this node names, up to a number for each pod.
	Watch = "Watch"
	// Cache reads an object again when it is older than the TTL.
	Cache = "Cache"
	// Get reads an object each time that it is asked for.
	Get = "Get"
)

// Options set how objects are kept, how long things are kept and waited for.
type Options struct {
	// Strategy is how changes are found; default Cache.
	Strategy string
	// Changed is called with a pod one of whose objects is no longer what the pod was given, or
	// now exists; strategy Watch only. It must not block. Default: nothing is called.
	Changed func(pod types.UID)
	// TTL is how long a Secret or ConfigMap counts as fresh; default 1 minute, as the kubelet's. An older one serves
	// only while the apiserver cannot be asked.
	TTL time.Duration
	// Timeout bounds each request; default 10 s.
	Timeout time.Duration
	Log     *slog.Logger
}

func (o Options) withDefaults() Options {
	if o.TTL == 0 {
		o.TTL = defaultTTL
	}
	if o.Strategy == Get {
		o.TTL = 0
	}
	if o.Timeout == 0 {
		o.Timeout = defaultTimeout
	}
	if o.Changed == nil {
		o.Changed = func(types.UID) {}
	}
	if o.Log == nil {
		o.Log = slog.Default()
	}
	return o
}

// Store gets Secrets and ConfigMaps of the node's pods. What it returns is shared and must not be changed.
type Store struct {
	secrets    kind[*v1.Secret]
	configMaps kind[*v1.ConfigMap]
	end        context.CancelFunc
	log        *slog.Logger

	mu   sync.Mutex
	pods map[types.UID]named
}

// named is what one pod names.
type named struct{ secrets, configMaps []key }

// kind gets the objects of one kind.
type kind[T object] struct {
	name  string
	cache cache[T]
	// watches is nil with a strategy that has none.
	watches *watches[T]
}

// New returns a Store; with a nil client every get fails, as on a node without an apiserver.
// Run ends what it began.
func New(client kubernetes.Interface, o Options) *Store {
	o = o.withDefaults()
	life, end := context.WithCancel(context.Background())
	s := &Store{pods: map[types.UID]named{}, end: end, log: o.Log}
	secrets, configMaps := apis(client)
	s.secrets = kind[*v1.Secret]{name: secrets.name, cache: newCache(o, secrets.get)}
	s.configMaps = kind[*v1.ConfigMap]{name: configMaps.name, cache: newCache(o, configMaps.get)}
	if o.Strategy != Watch || client == nil {
		return s
	}
	s.secrets.watches = newWatches(life, client, secrets.resource(), o)
	s.configMaps.watches = newWatches(life, client, configMaps.resource(), o)
	return s
}

// Run keeps the watches until ctx ends, and then waits for their ends.
func (s *Store) Run(ctx context.Context) error {
	<-ctx.Done()
	s.end()
	if s.secrets.watches != nil {
		s.secrets.watches.running.Wait()
		s.configMaps.watches.running.Wait()
	}
	return nil
}

// get returns the object from its watch, or reads it while the watch has not come so far.
func (k *kind[T]) get(ctx context.Context, at key) (T, error) {
	var none T
	if k.watches == nil {
		return k.cache.get(ctx, at)
	}
	known := k.watches.get(at)
	switch {
	case known.known && known.value != none:
		return known.value, nil
	case known.known:
		return none, apierrors.NewNotFound(v1.Resource(k.name), at.name)
	}
	value, err := k.cache.get(ctx, at)
	if ctx.Err() != nil {
		return none, ctx.Err() // it says nothing of the object
	}
	if err != nil {
		value = none
	}
	return k.watches.read(at, known, value, err)
}

// Secret returns a Secret: with strategy Watch as far as its watch has come, else not older
// than the TTL, save for Cache while the apiserver cannot be asked: then the version that was read last.
func (s *Store) Secret(ctx context.Context, namespace, name string) (*v1.Secret, error) {
	return s.secrets.get(ctx, key{namespace, name})
}

// ConfigMap returns a ConfigMap, as Secret does.
func (s *Store) ConfigMap(ctx context.Context, namespace, name string) (*v1.ConfigMap, error) {
	return s.configMaps.get(ctx, key{namespace, name})
}

// Register reports that a pod begins to be worked on, or has changed. Whatever it begins to
// name is read again by the next get, even if another pod has just read it, unless a watch
// has it. An immutable object has no watch.
func (s *Store) Register(p *v1.Pod) {
	secrets, configMaps := references(p)
	now := named{keys(p.Namespace, secrets), keys(p.Namespace, configMaps)}
	for _, n := range []int{len(now.secrets), len(now.configMaps)} {
		if n > maxWatched {
			s.log.Warn("pod names more objects of a kind than are watched, the others are read when they are old",
				logkey.Pod, p.Namespace+"/"+p.Name, logkey.PodUID, p.UID, "objects", n, "watched", maxWatched)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	before := s.pods[p.UID]
	s.pods[p.UID] = now
	s.secrets.named(p.UID, before.secrets, now.secrets)
	s.configMaps.named(p.UID, before.configMaps, now.configMaps)
}

// Unregister forgets a pod, and with it what is no longer fresh and named by no other pod.
func (s *Store) Unregister(uid types.UID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	before := s.pods[uid]
	delete(s.pods, uid)
	s.secrets.named(uid, before.secrets, nil)
	s.configMaps.named(uid, before.configMaps, nil)
	secrets, configMaps := map[key]bool{}, map[key]bool{}
	for _, n := range s.pods {
		for _, k := range n.secrets {
			secrets[k] = true
		}
		for _, k := range n.configMaps {
			configMaps[k] = true
		}
	}
	s.secrets.collect(secrets)
	s.configMaps.collect(configMaps)
}

// collect drops what is no longer fresh from the cache, but for what pods name: it serves in an outage of the
// apiserver. Where there are watches these have it.
func (k *kind[T]) collect(used map[key]bool) {
	if k.watches != nil {
		used = nil
	}
	k.cache.collect(used)
}

// named reports what a pod names now and named before.
func (k *kind[T]) named(pod types.UID, before, now []key) {
	for _, at := range without(now, before) {
		k.cache.invalidate(at)
	}
	if k.watches == nil {
		return
	}
	watched, wanted := before[:min(len(before), maxWatched)], now[:min(len(now), maxWatched)]
	for _, at := range without(wanted, watched) {
		k.watches.add(at, pod)
	}
	for _, at := range without(watched, wanted) {
		k.watches.remove(at, pod)
	}
}

// without returns the keys that are not among others, which are in their order.
func without(keys, others []key) []key {
	var rest []key
	for _, k := range keys {
		_, found := slices.BinarySearchFunc(others, k, func(a, b key) int { return cmp.Compare(a.name, b.name) })
		if !found {
			rest = append(rest, k)
		}
	}
	return rest
}

func keys(namespace string, names []string) []key {
	slices.Sort(names)
	var all []key
	for _, name := range slices.Compact(names) {
		if name != "" {
			all = append(all, key{namespace, name})
		}
	}
	return all
}

// PullSecrets returns the imagePullSecrets of a pod that can be read, and the names of the others: a pull goes on
// without those, since the image may need none of them. The error is only ctx's.
func (s *Store) PullSecrets(ctx context.Context, p *v1.Pod) (found []v1.Secret, missing []string, err error) {
	for _, ref := range p.Spec.ImagePullSecrets {
		if ref.Name == "" {
			continue
		}
		secret, err := s.Secret(ctx, p.Namespace, ref.Name)
		switch {
		case ctx.Err() != nil:
			return nil, nil, fmt.Errorf("get imagePullSecret %s/%s: %w", p.Namespace, ref.Name, ctx.Err())
		case err != nil:
			s.log.Warn("imagePullSecret cannot be read, the pull may fail", logkey.Pod, p.Namespace+"/"+p.Name,
				logkey.PodUID, p.UID, "secret", ref.Name, logkey.Err, err)
			missing = append(missing, ref.Name)
		default:
			found = append(found, *secret)
		}
	}
	return found, missing, nil
}
