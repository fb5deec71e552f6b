// Package ledger has which pod holds which devices. A device has one pod at most. It does no I/O, and its caller guards
// it.
package ledger

import (
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/types"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// Grant is what a container has of one resource.
type Grant struct {
	// Devices have the NUMA nodes that each is near to.
	Devices map[string][]int64
	// Answer is what the plugin adds to the container.
	Answer *pluginapi.ContainerAllocateResponse
}

// Container is what one container has.
type Container struct {
	Name string
	// Grants are by resource.
	Grants map[string]Grant
}

// Pod is what a pod has, in the order of its containers.
type Pod []Container

// Of returns what a container has of a resource.
func (p Pod) Of(container, resource string) (Grant, bool) {
	for _, c := range p {
		if c.Name == container {
			g, ok := c.Grants[resource]
			return g, ok
		}
	}
	return Grant{}, false
}

// With returns a copy in which a container has a grant.
func (p Pod) With(container, resource string, g Grant) Pod {
	p = slices.Clone(p)
	i := slices.IndexFunc(p, func(c Container) bool { return c.Name == container })
	if i < 0 {
		return append(p, Container{Name: container, Grants: map[string]Grant{resource: g}})
	}
	p[i].Grants = maps.Clone(p[i].Grants)
	p[i].Grants[resource] = g
	return p
}

// Ordered returns a copy with the containers in this order, and others last.
func (p Pod) Ordered(names []string) Pod {
	p = slices.Clone(p)
	place := func(c Container) int {
		if i := slices.Index(names, c.Name); i >= 0 {
			return i
		}
		return len(names)
	}
	slices.SortStableFunc(p, func(a, b Container) int { return place(a) - place(b) })
	return p
}

// Ledger is safe for one goroutine at a time. The zero value is empty.
type Ledger struct {
	granted map[types.UID]Pod
	// reserved are devices that a pod may get, by resource. It has them already if it is granted them.
	reserved map[types.UID]map[string]map[string]bool
	// storing are pods as they are once their write has succeeded.
	storing map[types.UID]Pod
}

// Granted returns what a pod was granted. No one changes it.
func (l *Ledger) Granted(uid types.UID) Pod { return l.granted[uid] }

// Pods returns what all pods were granted. No one changes it.
func (l *Ledger) Pods() map[types.UID]Pod { return l.granted }

// Stored returns what the file is to hold: what pods were granted, and what those would be whose write is under way.
func (l *Ledger) Stored() map[types.UID]Pod {
	all := maps.Clone(l.granted)
	if all == nil {
		all = map[types.UID]Pod{}
	}
	maps.Copy(all, l.storing)
	return all
}

// Held returns the devices of a resource that pods have, or may get, but those of one pod.
func (l *Ledger) Held(resource string, but types.UID) map[string]bool {
	held := map[string]bool{}
	for uid, pod := range l.Stored() {
		if uid != but {
			hold(held, pod, resource)
		}
	}
	for uid, resources := range l.reserved {
		if uid != but {
			maps.Copy(held, resources[resource])
		}
	}
	return held
}

// HeldBy returns the devices of a resource that a pod has, or may get.
func (l *Ledger) HeldBy(uid types.UID, resource string) map[string]bool {
	held := map[string]bool{}
	hold(held, l.granted[uid], resource)
	maps.Copy(held, l.reserved[uid][resource])
	return held
}

func hold(held map[string]bool, pod Pod, resource string) {
	for _, c := range pod {
		for id := range c.Grants[resource].Devices {
			held[id] = true
		}
	}
}

// Reserve keeps devices for a pod, which no other holds.
func (l *Ledger) Reserve(uid types.UID, resource string, devices []string) {
	if l.reserved == nil {
		l.reserved = map[types.UID]map[string]map[string]bool{}
	}
	if l.reserved[uid] == nil {
		l.reserved[uid] = map[string]map[string]bool{}
	}
	if l.reserved[uid][resource] == nil {
		l.reserved[uid][resource] = map[string]bool{}
	}
	for _, id := range devices {
		l.reserved[uid][resource][id] = true
	}
}

// Release ends the reservations of a pod, which keeps what it was granted.
func (l *Ledger) Release(uid types.UID) {
	delete(l.reserved, uid)
	delete(l.storing, uid)
}

// Store says that the write begins after which the pod has this, which it has reserved or had.
func (l *Ledger) Store(uid types.UID, pod Pod) {
	if l.storing == nil {
		l.storing = map[types.UID]Pod{}
	}
	l.storing[uid] = pod
}

// Grant gives a pod all that it has from now on, and ends its reservations.
func (l *Ledger) Grant(uid types.UID, pod Pod) {
	l.Release(uid)
	if len(pod) == 0 {
		delete(l.granted, uid)
		return
	}
	if l.granted == nil {
		l.granted = map[types.UID]Pod{}
	}
	l.granted[uid] = pod
}

// Forget frees what a pod was granted, and reports whether it was something. Its reservations stay: who made them ends
// them.
func (l *Ledger) Forget(uid types.UID) bool {
	_, had := l.granted[uid]
	delete(l.granted, uid)
	return had
}
