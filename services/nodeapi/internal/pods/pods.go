// Package pods finds the pods that requests of nodeapi name.
//
// While the bus is down, it uses the last values.
package pods

import (
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/microlet/microlet/services/internal/nodepods"
	"github.com/microlet/microlet/services/internal/podutil"
)

// Source has the pods; see nodepods.View.
type Source interface {
	All() map[string]*nodepods.Pod
	Synced() bool
}

// Is reports whether a request that names a UID means this pod. An empty one names none. A static pod has another UID
// in the API server, that of its mirror.
func Is(p *v1.Pod, uid types.UID) bool { return uid == "" || uid == p.UID || podutil.IsStatic(p) }

// Pods are the node's pods. It is safe for concurrent use.
type Pods struct{ source Source }

// New returns the pods of a source.
func New(s Source) *Pods { return &Pods{s} }

// Known reports whether all pods are known. Before that, one that is not found may exist.
func (p *Pods) Known() bool { return p.source.Synced() }

// ByName returns the pod of this name, with the resources that are granted. It is shared: do not change it. Of two, as
// when one is recreated while the old one still ends, it is the one that is not ending.
func (p *Pods) ByName(namespace, name string) (*v1.Pod, bool) {
	found := p.byName(namespace, name)
	if found == nil {
		return nil, false
	}
	return found.Pod, true
}

func (p *Pods) byName(namespace, name string) (found *nodepods.Pod) {
	for _, pod := range p.source.All() {
		if pod.Err != nil || pod.Namespace != namespace || pod.Name != name {
			continue
		}
		if found == nil || found.DeletionTimestamp != nil && pod.DeletionTimestamp == nil ||
			(found.DeletionTimestamp == nil) == (pod.DeletionTimestamp == nil) &&
				found.CreationTimestamp.Before(&pod.CreationTimestamp) {
			found = pod
		}
	}
	return found
}

// List returns all pods with the resources that they ask for, by namespace and name. What they point to is shared. One
// that cannot be read is an error, since a list without it would say that there is no such pod.
func (p *Pods) List() ([]v1.Pod, error) {
	return p.list(func(pod *nodepods.Pod) (v1.Pod, bool) { return *pod.Desired, true })
}

// Allocated returns the pods that run or may run, with what they are granted and without a status, by namespace
// and name. What they point to is shared.
func (p *Pods) Allocated() ([]v1.Pod, error) { return p.list(allocated) }

// AllocatedByName returns the pod of this name, and of this UID unless that is empty, as Allocated does.
func (p *Pods) AllocatedByName(namespace, name string, uid types.UID) (v1.Pod, bool) {
	found := p.byName(namespace, name)
	if found == nil || !Is(found.Pod, uid) {
		return v1.Pod{}, false
	}
	return allocated(found)
}

// allocated is a pod with what it was granted; false for one that was not admitted yet, was rejected or has ended.
func allocated(pod *nodepods.Pod) (v1.Pod, bool) {
	if !pod.Reported || podutil.IsTerminal(pod.Status.Phase) {
		return v1.Pod{}, false
	}
	granted := *pod.Pod
	granted.Status = v1.PodStatus{}
	return granted, true
}

func (p *Pods) list(as func(*nodepods.Pod) (v1.Pod, bool)) ([]v1.Pod, error) {
	list := []v1.Pod{}
	for _, pod := range p.source.All() {
		if pod.Err != nil {
			return nil, pod.Err
		}
		if one, ok := as(pod); ok {
			list = append(list, one)
		}
	}
	slices.SortFunc(list, func(a, b v1.Pod) int {
		return strings.Compare(a.Namespace+"/"+a.Name+"/"+string(a.UID), b.Namespace+"/"+b.Name+"/"+string(b.UID))
	})
	return list, nil
}
