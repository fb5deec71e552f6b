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

// ByName returns the pod of this name. It is shared: do not change it. Of two, as when one is recreated while the old
// one still ends, it is the one that is not ending.
func (p *Pods) ByName(namespace, name string) (*v1.Pod, bool) {
	var found *v1.Pod
	for _, pod := range p.source.All() {
		if pod.Err != nil || pod.Namespace != namespace || pod.Name != name {
			continue
		}
		if found == nil || found.DeletionTimestamp != nil && pod.DeletionTimestamp == nil ||
			(found.DeletionTimestamp == nil) == (pod.DeletionTimestamp == nil) &&
				found.CreationTimestamp.Before(&pod.CreationTimestamp) {
			found = pod.Pod
		}
	}
	return found, found != nil
}

// List returns all pods, by namespace and name. What they point to is shared. One that cannot be read is an error,
// since a list without it would say that there is no such pod.
func (p *Pods) List() ([]v1.Pod, error) {
	list := []v1.Pod{}
	for _, pod := range p.source.All() {
		if pod.Err != nil {
			return nil, pod.Err
		}
		list = append(list, *pod.Pod)
	}
	slices.SortFunc(list, func(a, b v1.Pod) int {
		return strings.Compare(a.Namespace+"/"+a.Name+"/"+string(a.UID), b.Namespace+"/"+b.Name+"/"+string(b.UID))
	})
	return list, nil
}
