// Package source brings in the pods that this node should run.
//
// A source tells a Sink which pods it wants, each newest version once, and says when
// it has told of all that it knew at the start. Until then nothing may be concluded
// from a pod's absence. Input: a list and watch of the apiserver. Guarantees: a pod
// whose UID could not be a key of the bus is refused here, with an error that names
// it, and never reaches the rest; an outage of the apiserver removes nothing.
package source

import (
	"context"
	"fmt"
	"log/slog"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	podsyncv1 "github.com/microlet/microlet/proto/microlet/podsync/v1"
	"github.com/microlet/microlet/proto/subject"
)

// Sink receives what a source wants. Its methods are called one at a time and must not block.
type Sink interface {
	// SetPod tells of a new pod or of a new version of a known one.
	SetPod(p *v1.Pod, from podsyncv1.PodSource)
	// RemovePod tells that the source wants the pod no longer: its object is gone.
	RemovePod(uid types.UID, from podsyncv1.PodSource)
	// SourceSynced tells that the source has told of every pod that it had at the start.
	SourceSynced(from podsyncv1.PodSource)
}

// APIServer is the source of the pods that are bound to this node (spec.nodeName).
type APIServer struct {
	client   kubernetes.Interface
	nodeName string
	log      *slog.Logger
}

// NewAPIServer returns the source; Run starts it.
func NewAPIServer(client kubernetes.Interface, nodeName string, log *slog.Logger) *APIServer {
	return &APIServer{client: client, nodeName: nodeName, log: log}
}

// Run lists and watches until ctx ends. client-go's reflector retries for ever.
func (s *APIServer) Run(ctx context.Context, sink Sink) error {
	ofThisNode := fields.OneTermEqualSelector("spec.nodeName", s.nodeName).String()
	lw := cache.NewFilteredListWatchFromClient(s.client.CoreV1().RESTClient(), "pods", metav1.NamespaceAll,
		func(o *metav1.ListOptions) { o.FieldSelector = ofThisNode })

	_, informer := cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: cache.ToListWatcherWithWatchListSemantics(lw, s.client),
		ObjectType:    &v1.Pod{},
		Transform:     slim,
		Handler:       s.handler(sink),
	})
	done := make(chan struct{})
	go func() {
		defer close(done)
		informer.RunWithContext(ctx)
	}()
	if cache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
		sink.SourceSynced(podsyncv1.PodSource_POD_SOURCE_API)
	}
	<-done
	return nil
}

// handler tells sink what the informer sees.
func (s *APIServer) handler(sink Sink) cache.ResourceEventHandler {
	set := func(obj any) {
		p := obj.(*v1.Pod)
		if _, mirror := p.Annotations[v1.MirrorPodAnnotationKey]; mirror {
			return // the image of a static pod, which its own source runs
		}
		if err := Validate(p); err != nil {
			s.log.Error("pod refused", "pod", p.Namespace+"/"+p.Name, "err", err)
			return
		}
		sink.SetPod(p, podsyncv1.PodSource_POD_SOURCE_API)
	}
	remove := func(obj any) {
		if unknown, ok := obj.(cache.DeletedFinalStateUnknown); ok {
			obj = unknown.Obj
		}
		if p, ok := obj.(*v1.Pod); ok {
			sink.RemovePod(p.UID, podsyncv1.PodSource_POD_SOURCE_API)
		}
	}
	return cache.ResourceEventHandlerFuncs{
		AddFunc: set,
		UpdateFunc: func(old, obj any) {
			// The informer knows pods by name. One that was deleted and made anew while the
			// watch was broken comes as an update, and nothing else tells of the old one's end.
			if old.(*v1.Pod).UID != obj.(*v1.Pod).UID {
				remove(old)
			}
			set(obj)
		},
		DeleteFunc: remove,
	}
}

// slim drops what no service of the node reads and every pod carries.
func slim(obj any) (any, error) {
	if p, ok := obj.(*v1.Pod); ok {
		p.ManagedFields = nil
	}
	return obj, nil
}

// Validate refuses a pod whose names could not be used on this node: its UID is a key of
// the bus, a folder's name and a cgroup's.
func Validate(p *v1.Pod) error {
	if err := subject.ValidToken(string(p.UID)); err != nil {
		return fmt.Errorf("metadata.uid: %w", err)
	}
	return nil
}
