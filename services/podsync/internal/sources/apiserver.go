package sources

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	podsyncv1 "github.com/microlet/microlet/proto/microlet/podsync/v1"
	"github.com/microlet/microlet/proto/subject"
	"github.com/microlet/microlet/services/internal/logkey"
	"github.com/microlet/microlet/services/internal/podutil"
	"github.com/microlet/microlet/services/podsync/internal/sources/manifest"
)

// Mirrors receives the mirror pods of static pods, which are never run. Its methods must not block.
type Mirrors interface {
	// SetMirror reports a mirror pod as the API has it.
	SetMirror(p *v1.Pod)
	// RemoveMirror reports that the API no longer has it.
	RemoveMirror(p *v1.Pod)
	// MirrorsSynced is called once all that the API had at the start were sent.
	MirrorsSynced()
	// Source names the source that wants a static pod of this name; empty when none does.
	Source(name types.NamespacedName) string
}

// APIServer is the source of the pods that are bound to this node (spec.nodeName).
//
// It does not wait for the Node to be registered, as the kubelet does: a pod that is bound to the node's name is a pod
// to run, and a list that the apiserver answers is all the proof that is needed. So neither nodestatus nor the bus is
// needed to start a pod.
type APIServer struct {
	client   kubernetes.Interface
	nodeName string
	mirrors  Mirrors
	log      *slog.Logger
}

// NewAPIServer returns the source; Run starts it.
func NewAPIServer(client kubernetes.Interface, nodeName string, mirrors Mirrors, log *slog.Logger) *APIServer {
	return &APIServer{client: client, nodeName: nodeName, mirrors: mirrors, log: log}
}

// backoff bounds the pause between two tries while the apiserver is away to 2 s. client-go's own grows to 30 s and
// more, and for so long a pod that was bound meanwhile would wait after the apiserver is back.
func backoff() *wait.Backoff {
	return &wait.Backoff{
		Duration: 200 * time.Millisecond,
		Factor:   2,
		Jitter:   0.25,
		Steps:    10,
		Cap:      1600 * time.Millisecond,
	}
}

// Run lists and watches until ctx ends, however often that fails.
func (s *APIServer) Run(ctx context.Context, sink Sink) error {
	ofThisNode := fields.OneTermEqualSelector("spec.nodeName", s.nodeName).String()
	lw := cache.NewFilteredListWatchFromClient(s.client.CoreV1().RESTClient(), "pods", metav1.NamespaceAll,
		func(o *metav1.ListOptions) { o.FieldSelector = ofThisNode })
	reflector := cache.NewReflectorWithOptions(cache.ToListWatcherWithWatchListSemantics(lw, s.client), &v1.Pod{},
		s.store(sink),
		cache.ReflectorOptions{Name: "pods", Backoff: backoff()})
	reflector.RunWithContext(ctx)
	return nil
}

func (s *APIServer) store(sink Sink) *apiStore {
	return &apiStore{sink: sink, mirrors: s.mirrors, log: s.log, pods: map[types.UID]*v1.Pod{}}
}

// apiStore is what the API had last. It knows pods by UID, so that a pod counts as ended if it was deleted and created
// again under its name unobserved. The reflector calls it from one goroutine.
type apiStore struct {
	sink    Sink
	mirrors Mirrors
	log     *slog.Logger
	pods    map[types.UID]*v1.Pod
	synced  bool
}

var _ cache.ReflectorStore = (*apiStore)(nil)

// Add implements cache.ReflectorStore.
func (s *apiStore) Add(obj any) error { return s.Update(obj) }

// Update implements cache.ReflectorStore.
func (s *apiStore) Update(obj any) error {
	p, ok := obj.(*v1.Pod)
	if !ok {
		return fmt.Errorf("a %T in the watch of pods", obj)
	}
	p.ManagedFields = nil // nothing on the node reads them, and every pod carries them
	if podutil.IsMirror(p) {
		s.pods[p.UID] = p
		s.mirrors.SetMirror(p)
		return nil
	}
	if err := Validate(p); err != nil {
		s.log.Error("pod refused", logkey.Pod, p.Namespace+"/"+p.Name, logkey.Err, err)
		return nil
	}
	seen := seenNow()
	if old := s.pods[p.UID]; old != nil {
		seen = old.Annotations[manifest.SeenAnnotation]
	}
	p = manifest.Annotate(p, Name(podsyncv1.PodSource_POD_SOURCE_API), seen)
	s.pods[p.UID] = p
	s.sink.SetPod(p, podsyncv1.PodSource_POD_SOURCE_API)
	return nil
}

// Delete implements cache.ReflectorStore.
func (s *apiStore) Delete(obj any) error {
	p, ok := obj.(*v1.Pod)
	if !ok {
		return fmt.Errorf("a %T in the watch of pods", obj)
	}
	s.remove(p.UID)
	return nil
}

func (s *apiStore) remove(uid types.UID) {
	p := s.pods[uid]
	if p == nil {
		return
	}
	delete(s.pods, uid)
	if podutil.IsMirror(p) {
		s.mirrors.RemoveMirror(p)
		return
	}
	s.sink.RemovePod(uid, podsyncv1.PodSource_POD_SOURCE_API)
}

// Replace implements cache.ReflectorStore: it takes a whole list, the first or one after an outage.
func (s *apiStore) Replace(list []any, _ string) error {
	listed := map[types.UID]bool{}
	for _, obj := range list {
		if p, ok := obj.(*v1.Pod); ok {
			listed[p.UID] = true
		}
	}
	for uid := range s.pods {
		if !listed[uid] {
			s.remove(uid)
		}
	}
	for _, obj := range list {
		if err := s.Update(obj); err != nil {
			return err
		}
	}
	if !s.synced {
		s.synced = true
		s.mirrors.MirrorsSynced()
		s.sink.SourceSynced(podsyncv1.PodSource_POD_SOURCE_API)
	}
	return nil
}

// Resync implements cache.ReflectorStore; there is none.
func (s *apiStore) Resync() error { return nil }

// Validate refuses a pod if its names could not be used on this node: its UID is a key of the bus, a folder's name and
// a cgroup's.
func Validate(p *v1.Pod) error {
	if err := subject.ValidToken(string(p.UID)); err != nil {
		return fmt.Errorf("metadata.uid: %w", err)
	}
	return nil
}
