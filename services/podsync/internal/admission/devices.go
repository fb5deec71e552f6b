package admission

import (
	"context"
	"fmt"
	"maps"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"

	"github.com/microlet/microlet/services/internal/podutil"
)

// devices are the extended resources that the service resources hands out. It decides on them for a pod that was
// admitted and keeps its place meanwhile, so NodeFit does not count them. The kubelet decides on them before the
// others, and its predicates then find as many as it has handed out.
type devices struct {
	allocatable v1.ResourceList
	// known: resources has said which they are.
	known bool
}

func (a *Admitter) devices() devices {
	if a.o.Extended == nil {
		return devices{known: true}
	}
	allocatable, known := a.o.Extended()
	return devices{allocatable, known}
}

// hasOut reports whether resources hands out a resource of which the Node has this amount. While it has not said so, a
// resource that the Node has none of counts as one: that is what a device plugin leaves behind when it goes.
func (d devices) hasOut(name v1.ResourceName, onNode resource.Quantity) bool {
	if !d.known {
		return podutil.IsExtended(name) && onNode.IsZero()
	}
	_, is := d.allocatable[name]
	return is
}

// with returns the Node with what resources says that pods may have, which is newer.
func (d devices) with(n *v1.Node) *v1.Node {
	if len(d.allocatable) == 0 {
		return n
	}
	n = n.DeepCopy()
	if n.Status.Allocatable == nil {
		n.Status.Allocatable = v1.ResourceList{}
	}
	maps.Copy(n.Status.Allocatable, d.allocatable)
	return n
}

// Placed are the pods that have a place on the node.
type Placed struct {
	UIDs []types.UID
	// At is when that was so: a pod that has its place since is not among them.
	At time.Time
	// Leaving: some of them are on their way to their end, or are no pods of this node any more as far as is known. What
	// they hold is free soon.
	Leaving bool
}

// Placed returns the pods that were admitted and have not ended, and those of which something runs besides.
func (a *Admitter) Placed(ctx context.Context) (Placed, error) {
	running, err := a.o.Running(ctx)
	if err != nil {
		return Placed{}, fmt.Errorf("ask the runtime which pods run: %w", err)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	all := Placed{At: time.Now()}
	for _, e := range a.queue {
		if e.stage == admitted || e.stage == undecided && a.runs[e.pod.UID] {
			all.UIDs = append(all.UIDs, e.pod.UID)
			all.Leaving = all.Leaving || !e.leaves.IsZero()
		}
	}
	for uid, runs := range running {
		if runs && a.pods[uid] == nil {
			all.UIDs, all.Leaving = append(all.UIDs, uid), true
		}
	}
	return all, nil
}
