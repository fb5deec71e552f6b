package objects

import (
	"context"
	"errors"
	"fmt"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"

	"github.com/microlet/microlet/services/internal/absence"
)

// errStandalone is what a node without an apiserver says of every object.
var errStandalone = errors.New("no kubeClient defined: this node runs without an apiserver")

// api is the apiserver's side of one kind of object, of which L is a list.
type api[T object, L list] struct {
	// name is that of one object, as the kubelet writes it in "not found".
	name string
	// title is how the kubelet writes it elsewhere.
	title     string
	immutable func(T) bool
	// example is an object of the kind.
	example T
	// in returns the client for a namespace; nil on a node without an apiserver.
	in func(namespace string) client[T, L]
}

// list is what the API server answers to a list.
type list interface {
	runtime.Object
	metav1.ListInterface
}

// client is what client-go has for the objects of one kind in one namespace.
type client[T object, L list] interface {
	Get(ctx context.Context, name string, o metav1.GetOptions) (T, error)
	List(ctx context.Context, o metav1.ListOptions) (L, error)
	Watch(ctx context.Context, o metav1.ListOptions) (watch.Interface, error)
}

// apis returns both kinds.
func apis(c kubernetes.Interface) (api[*v1.Secret, *v1.SecretList], api[*v1.ConfigMap, *v1.ConfigMapList]) {
	secrets := api[*v1.Secret, *v1.SecretList]{
		name: "secret", title: "secret", example: &v1.Secret{},
		immutable: func(s *v1.Secret) bool { return s.Immutable != nil && *s.Immutable },
	}
	configMaps := api[*v1.ConfigMap, *v1.ConfigMapList]{
		name: "configmap", title: "configMap", example: &v1.ConfigMap{},
		immutable: func(m *v1.ConfigMap) bool { return m.Immutable != nil && *m.Immutable },
	}
	if c != nil {
		secrets.in = func(namespace string) client[*v1.Secret, *v1.SecretList] { return c.CoreV1().Secrets(namespace) }
		configMaps.in = func(namespace string) client[*v1.ConfigMap, *v1.ConfigMapList] {
			return c.CoreV1().ConfigMaps(namespace)
		}
	}
	return secrets, configMaps
}

// get reads one object.
func (a api[T, L]) get(ctx context.Context, namespace, name string) (T, error) {
	if a.in == nil {
		var none T
		return none, fmt.Errorf("couldn't get %s %s/%s: %w", a.title, namespace, name, errStandalone)
	}
	got, err := bound(ctx, func() (T, error) { return a.in(namespace).Get(ctx, name, metav1.GetOptions{}) })
	if apierrors.IsNotFound(err) && !absence.Of(err, a.name+"s", name) {
		// A container would start without what is optional.
		return got, fmt.Errorf("couldn't get %s %s/%s, and it is not the API server that does not find it: %s", a.title,
			namespace, name, err.Error())
	}
	if err == nil && got.GetName() != name { // client-go takes any object of JSON for one
		return got, fmt.Errorf("couldn't get %s %s/%s: the answer is none", a.title, namespace, name)
	}
	return got, singular(err, a.name, name)
}

// resource is what a watch needs.
func (a api[T, L]) resource() resource[T] {
	return resource[T]{
		example: a.example,
		list: func(ctx context.Context, namespace string, o metav1.ListOptions) (runtime.Object, error) {
			got, err := a.in(namespace).List(ctx, o)
			if err == nil && got.GetResourceVersion() == "" { // client-go takes any object of JSON for an empty list
				return nil, fmt.Errorf("list %ss of %s: the answer is none", a.title, namespace)
			}
			return got, err
		},
		watch: func(ctx context.Context, namespace string, o metav1.ListOptions) (watch.Interface, error) {
			return a.in(namespace).Watch(ctx, o)
		},
		immutable: a.immutable,
	}
}

// singular gives "not found" the kubelet's words, which users and tools know: configmap
// "x" not found, where the apiserver says configmaps.
func singular(err error, resource, name string) error {
	if apierrors.IsNotFound(err) {
		return apierrors.NewNotFound(v1.Resource(resource), name)
	}
	return err
}
