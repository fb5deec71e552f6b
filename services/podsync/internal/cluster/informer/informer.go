// Package informer watches the API objects of one kind.
//
// The factories of client-go link the informers of every kind that the API has, of which a node needs five.
package informer

import (
	"context"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
)

// Client is client-go's client of one kind, which answers with a list L.
type Client[L runtime.Object] interface {
	List(context.Context, metav1.ListOptions) (L, error)
	Watch(context.Context, metav1.ListOptions) (watch.Interface, error)
}

// New returns an informer of the kind of example, of the objects that the selector matches. It leaves out their
// managedFields. The client is one of set, which knows whether it can stream a list.
func New[L runtime.Object](set kubernetes.Interface, client Client[L], example runtime.Object,
	selector fields.Selector) cache.SharedIndexInformer {
	lw := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			o.FieldSelector = selector.String()
			return client.List(ctx, o)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.FieldSelector = selector.String()
			return client.Watch(ctx, o)
		},
	}
	informer := cache.NewSharedIndexInformer(cache.ToListWatcherWithWatchListSemantics(lw, set), example, 0,
		cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})
	_ = informer.SetTransform(withoutManagedFields) // fails once it runs
	return informer
}

// withoutManagedFields leaves out who set which field, which can be half of an object and has no reader on the node.
func withoutManagedFields(object any) (any, error) {
	if m, err := meta.Accessor(object); err == nil {
		m.SetManagedFields(nil)
	}
	return object, nil
}
