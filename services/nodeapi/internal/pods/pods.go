// Package pods provides the admitted pods of the node and their status.
//
// It reads the buckets PODS and POD_STATUS. While the bus is down, it uses the last values.
package pods

import (
	"fmt"
	"slices"
	"strings"
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	podsyncv1 "github.com/microlet/microlet/proto/microlet/podsync/v1"
	"github.com/microlet/microlet/proto/subject"
	"github.com/microlet/microlet/services/internal/bus"
)

// Source is a bucket as a view of the bus shows it.
type Source[M any] interface {
	Get(key string) (M, bool)
	All() map[string]M
	Synced() bool
}

// Pod is a pod and what is known of it.
type Pod struct {
	*v1.Pod
	// Static: it came from a file or URL, and the apiserver's mirror of it has another UID.
	Static bool
	// Reported says that Status is what podsync reports; else it is as the pod came.
	Reported bool
}

// Is reports whether a request that names a UID means this pod. An empty one names none.
func (p *Pod) Is(uid types.UID) bool { return uid == "" || uid == p.UID || p.Static }

// Pods are the node's pods. It is safe for concurrent use.
type Pods struct {
	pods     Source[*podsyncv1.Pod]
	statuses Source[*podsyncv1.PodStatus]

	mu    sync.Mutex
	names map[string]string // by UID: namespace/name
}

// Watch returns the pods as the bus has them, once the client runs.
func Watch(c *bus.Client) *Pods {
	p := &Pods{names: map[string]string{}}
	p.pods = bus.Watch[podsyncv1.Pod](c, subject.Pods, ">", p.changed)
	p.statuses = bus.Watch[podsyncv1.PodStatus](c, subject.PodStatus, ">", nil)
	return p
}

// New returns the pods of these sources.
func New(pods Source[*podsyncv1.Pod], statuses Source[*podsyncv1.PodStatus]) *Pods {
	return &Pods{pods: pods, statuses: statuses, names: map[string]string{}}
}

// changed forgets the name of a pod that is not what it was.
func (p *Pods) changed(uid string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.names, uid)
}

// Known reports whether all pods have been heard of. Before that, one that is not found may exist.
func (p *Pods) Known() bool { return p.pods.Synced() }

// ByName returns the pod of this name. Of two, as when one is recreated while the old one still
// ends, it is the one that is not ending.
func (p *Pods) ByName(namespace, name string) (*Pod, bool) {
	var found *Pod
	for uid, m := range p.pods.All() {
		if p.name(uid, m) != namespace+"/"+name {
			continue
		}
		pod, err := p.decode(uid, m)
		if err != nil {
			continue // it was logged by who decodes all
		}
		if found == nil || found.DeletionTimestamp != nil && pod.DeletionTimestamp == nil ||
			(found.DeletionTimestamp == nil) == (pod.DeletionTimestamp == nil) &&
				found.CreationTimestamp.Before(&pod.CreationTimestamp) {
			found = pod
		}
	}
	return found, found != nil
}

// name of the pod; decoding each at every request would be the most of its cost.
func (p *Pods) name(uid string, m *podsyncv1.Pod) string {
	p.mu.Lock()
	name, ok := p.names[uid]
	p.mu.Unlock()
	if ok {
		return name
	}
	var pod v1.Pod
	if err := pod.Unmarshal(m.GetPod()); err != nil {
		return ""
	}
	name = pod.Namespace + "/" + pod.Name
	p.mu.Lock()
	defer p.mu.Unlock()
	p.names[uid] = name
	return name
}

// List returns all pods, by namespace and name.
func (p *Pods) List() ([]v1.Pod, error) {
	list := []v1.Pod{}
	for uid, m := range p.pods.All() {
		pod, err := p.decode(uid, m)
		if err != nil {
			return nil, err
		}
		list = append(list, *pod.Pod)
	}
	slices.SortFunc(list, func(a, b v1.Pod) int {
		return strings.Compare(a.Namespace+"/"+a.Name+"/"+string(a.UID), b.Namespace+"/"+b.Name+"/"+string(b.UID))
	})
	return list, nil
}

func (p *Pods) decode(uid string, m *podsyncv1.Pod) (*Pod, error) {
	pod := &Pod{Pod: &v1.Pod{}, Static: m.GetSource() != podsyncv1.PodSource_POD_SOURCE_API}
	if err := pod.Unmarshal(m.GetPod()); err != nil {
		return nil, fmt.Errorf("decode pod %s of the bus: %w", uid, err)
	}
	if status, ok := p.statuses.Get(uid); ok {
		reported := v1.PodStatus{}
		if err := reported.Unmarshal(status.GetStatus()); err != nil {
			return nil, fmt.Errorf("decode status of pod %s of the bus: %w", uid, err)
		}
		pod.Status, pod.Reported = reported, true
	}
	return pod, nil
}
