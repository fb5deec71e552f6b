// Package containers finds the pod of a container by the container ID.
//
// The workers report the newest version of their pods and the containers that the runtime has. A look-up needs the
// whole ID and finds a container only while its pod belongs to this node. It distinguishes "no such container" from
// "not known yet": after a start, no container is known until all workers have read the runtime. As long as one of them
// cannot, a container that is not found may be its pod's.
package containers

import (
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/microlet/microlet/services/internal/podutil"
	"github.com/microlet/microlet/services/podsync/internal/pod"
)

// Index knows the containers of all pods. The zero value knows none. It is safe for concurrent use.
type Index struct {
	mu       sync.RWMutex
	pods     map[types.UID]*entry
	byID     map[string]container
	complete bool
	// unread are the pods that had no state when complete was set, and have none yet.
	unread map[types.UID]bool
}

type entry struct {
	pod  *v1.Pod
	ids  []string
	read bool // its state was set
}

type container struct {
	of   *entry
	name string
}

// SetPod takes the newest version of a pod, which must not change any more.
func (x *Index) SetPod(p *v1.Pod) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if e := x.pods[p.UID]; e != nil {
		e.pod = p
		return
	}
	if x.pods == nil {
		x.pods, x.byID = map[types.UID]*entry{}, map[string]container{}
	}
	x.pods[p.UID] = &entry{pod: p}
}

// SetState takes the containers that the runtime has of a pod, those that have ended included. The state of
// a pod that was not set is ignored.
func (x *Index) SetState(uid types.UID, s *pod.State) {
	x.mu.Lock()
	defer x.mu.Unlock()
	e := x.pods[uid]
	if e == nil {
		return
	}
	x.drop(e)
	delete(x.unread, uid)
	e.read = true
	e.ids = make([]string, len(s.Containers))
	for i := range s.Containers {
		c := &s.Containers[i]
		e.ids[i] = c.ID
		x.byID[c.ID] = container{of: e, name: c.Name}
	}
}

// Forget drops a pod that is gone, with its containers.
func (x *Index) Forget(uid types.UID) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if e := x.pods[uid]; e != nil {
		x.drop(e)
		delete(x.pods, uid)
		delete(x.unread, uid)
	}
}

func (x *Index) drop(e *entry) {
	for _, id := range e.ids {
		delete(x.byID, id)
	}
	e.ids = nil
}

// SetComplete says that the state of every pod on the node was set once, but of those that cannot be read.
func (x *Index) SetComplete() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.complete, x.unread = true, map[types.UID]bool{}
	for uid, e := range x.pods {
		if !e.read {
			x.unread[uid] = true
		}
	}
}

// Complete reports whether a container that is not found is no pod's. Before, it may be one of a pod that
// podsync has not looked at since it started.
func (x *Index) Complete() bool {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return x.complete && len(x.unread) == 0
}

// Find returns the pod that the container of this id is of, and its place in the pod's spec. ok is false if
// there is no such container, or the spec no longer names it. The caller must change neither.
func (x *Index) Find(id string) (p *v1.Pod, spec *v1.Container, ok bool) {
	x.mu.RLock()
	c, known := x.byID[id]
	if known {
		p = c.of.pod
	}
	x.mu.RUnlock()
	if !known {
		return nil, nil, false
	}
	if spec = podutil.Container(&p.Spec, c.name); spec == nil {
		return nil, nil, false
	}
	return p, spec, true
}
