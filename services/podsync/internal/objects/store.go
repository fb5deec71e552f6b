package objects

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
)

const (
	defaultTTL     = time.Minute
	defaultTimeout = 10 * time.Second
)

// errStandalone is what a node without an apiserver says of every object.
var errStandalone = errors.New("no kubeClient defined: this node runs without an apiserver")

// Options set how long things are kept and waited for.
type Options struct {
	// TTL is how long a Secret or ConfigMap counts as fresh; default 1 minute, as the kubelet's.
	TTL time.Duration
	// Timeout bounds each request; default 10 s.
	Timeout time.Duration
	Log     *slog.Logger
}

func (o Options) withDefaults() Options {
	if o.TTL == 0 {
		o.TTL = defaultTTL
	}
	if o.Timeout == 0 {
		o.Timeout = defaultTimeout
	}
	if o.Log == nil {
		o.Log = slog.Default()
	}
	return o
}

// Store gets Secrets and ConfigMaps of the node's pods. What it returns is shared: nobody
// may change it.
type Store struct {
	secrets    cache[*v1.Secret]
	configMaps cache[*v1.ConfigMap]

	mu   sync.Mutex
	pods map[types.UID]bool
}

// New returns a Store; with a nil client every get fails, as on a node without an apiserver.
func New(client kubernetes.Interface, o Options) *Store {
	o = o.withDefaults()
	s := &Store{pods: map[types.UID]bool{}}
	s.secrets = newCache(o, func(ctx context.Context, namespace, name string) (*v1.Secret, error) {
		if client == nil {
			return nil, fmt.Errorf("couldn't get secret %s/%s: %w", namespace, name, errStandalone)
		}
		got, err := client.CoreV1().Secrets(namespace).Get(ctx, name, metav1.GetOptions{})
		return got, singular(err, "secret", name)
	})
	s.configMaps = newCache(o, func(ctx context.Context, namespace, name string) (*v1.ConfigMap, error) {
		if client == nil {
			return nil, fmt.Errorf("couldn't get configMap %s/%s: %w", namespace, name, errStandalone)
		}
		got, err := client.CoreV1().ConfigMaps(namespace).Get(ctx, name, metav1.GetOptions{})
		return got, singular(err, "configmap", name)
	})
	return s
}

// singular gives "not found" the kubelet's words, which users and tools know: configmap
// "x" not found, where the apiserver says configmaps.
func singular(err error, resource, name string) error {
	if apierrors.IsNotFound(err) {
		return apierrors.NewNotFound(v1.Resource(resource), name)
	}
	return err
}

// Secret returns a Secret not older than the TTL.
func (s *Store) Secret(ctx context.Context, namespace, name string) (*v1.Secret, error) {
	return s.secrets.get(ctx, key{namespace, name})
}

// ConfigMap returns a ConfigMap not older than the TTL.
func (s *Store) ConfigMap(ctx context.Context, namespace, name string) (*v1.ConfigMap, error) {
	return s.configMaps.get(ctx, key{namespace, name})
}

// Register tells that a pod begins to be worked on. Whatever it names is read anew by the
// next get, even if another pod has just read it.
func (s *Store) Register(p *v1.Pod) {
	s.mu.Lock()
	known := s.pods[p.UID]
	s.pods[p.UID] = true
	s.mu.Unlock()
	if known {
		return
	}
	secrets, configMaps := references(p)
	for _, name := range secrets {
		s.secrets.invalidate(key{p.Namespace, name})
	}
	for _, name := range configMaps {
		s.configMaps.invalidate(key{p.Namespace, name})
	}
}

// Unregister forgets a pod, and with it what only stale entries still hold.
func (s *Store) Unregister(uid types.UID) {
	s.mu.Lock()
	delete(s.pods, uid)
	s.mu.Unlock()
	s.secrets.collect()
	s.configMaps.collect()
}

// PullSecrets returns the imagePullSecrets of a pod, and the names of those that do not
// exist: a pull goes on without them, since the image may need none. Any other error is
// returned, because a pull without the secret would then fail for a wrong reason.
func (s *Store) PullSecrets(ctx context.Context, p *v1.Pod) (found []v1.Secret, missing []string, err error) {
	for _, ref := range p.Spec.ImagePullSecrets {
		if ref.Name == "" {
			continue
		}
		secret, err := s.Secret(ctx, p.Namespace, ref.Name)
		switch {
		case apierrors.IsNotFound(err):
			missing = append(missing, ref.Name)
		case err != nil:
			return nil, nil, fmt.Errorf("get imagePullSecret %s/%s: %w", p.Namespace, ref.Name, err)
		default:
			found = append(found, *secret)
		}
	}
	return found, missing, nil
}
