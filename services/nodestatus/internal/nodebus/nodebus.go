// Package nodebus is nodestatus's part of the bus: the entries that it reads and those that it writes.
//
// It reads podsync's heartbeat, runtime, capacity, volumes in use and CSI drivers, pleg's relist, evictor's pressure,
// imagegc's images and the extended resources of resources. It writes the node's addresses, and what the
// API server has accepted of the Node.
package nodebus

import (
	"slices"
	"strings"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"

	busv1 "github.com/microlet/microlet/proto/microlet/bus/v1"
	imagegcv1 "github.com/microlet/microlet/proto/microlet/imagegc/v1"
	nodestatusv1 "github.com/microlet/microlet/proto/microlet/nodestatus/v1"
	plegv1 "github.com/microlet/microlet/proto/microlet/pleg/v1"
	podsyncv1 "github.com/microlet/microlet/proto/microlet/podsync/v1"
	resourcesv1 "github.com/microlet/microlet/proto/microlet/resources/v1"
	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/proto/subject"
	"github.com/microlet/microlet/services/internal/bus"
	"github.com/microlet/microlet/services/internal/pressure"
	"github.com/microlet/microlet/services/internal/service"
	"github.com/microlet/microlet/services/nodestatus/internal/observe"
)

// Entries are those of nodestatus. The values of others are the last ones while the bus is away.
type Entries struct {
	nodeName   string
	client     *bus.Client
	heartbeats heartbeats
	relist     *bus.View[*plegv1.Relist]
	runtime    *bus.View[*podsyncv1.Runtime]
	capacity   *bus.View[*podsyncv1.Capacity]
	volumes    *bus.View[*podsyncv1.Volumes]
	csi        *bus.View[*podsyncv1.CSIDrivers]
	extended   *bus.View[*resourcesv1.NodeResources]
	images     *bus.View[*imagegcv1.Images]
	pressure   *pressure.Reader
	writer     *bus.Writer

	mu sync.Mutex
	// shown is the list of volumes that the Node was last made to show.
	shown *podsyncv1.Volumes
}

// heartbeats are HEARTBEATS by key; see bus.View.
type heartbeats interface {
	All() map[string]*busv1.Heartbeat
}

// Watch watches the entries that nodestatus reads. due is called when the Node is to show at once what podsync has put
// about volumes, and resources about devices. It must not block.
func Watch(s *service.Service, due func(key string)) *Entries {
	return &Entries{
		nodeName:   s.Config.NodeName,
		client:     s.Bus,
		heartbeats: bus.Watch[busv1.Heartbeat](s.Bus, subject.Heartbeats, subject.HeartbeatKeys(role.Podsync), nil),
		relist:     bus.Watch[plegv1.Relist](s.Bus, subject.Runtime, subject.RuntimeRelist, nil),
		runtime:    bus.Watch[podsyncv1.Runtime](s.Bus, subject.Node, subject.NodeRuntime, nil),
		capacity:   bus.Watch[podsyncv1.Capacity](s.Bus, subject.Node, subject.NodeCapacity, nil),
		volumes:    bus.Watch[podsyncv1.Volumes](s.Bus, subject.Node, subject.NodeVolumes, due),
		csi:        bus.Watch[podsyncv1.CSIDrivers](s.Bus, subject.Node, subject.NodeCSI, due),
		extended:   bus.Watch[resourcesv1.NodeResources](s.Bus, subject.Node, subject.NodeResources, seldom(due)),
		images:     bus.Watch[imagegcv1.Images](s.Bus, subject.Node, subject.NodeImages, nil),
		pressure:   pressure.Watch(s.Bus),
		writer:     s.Bus.Own(subject.Node),
	}
}

// extendedPeriod is how often a change of extended resources has the Node updated at once: devices may change their
// health at any rate.
const extendedPeriod = time.Second

// seldom calls due for a key that changes, and at most once in extendedPeriod.
func seldom(due func(key string)) func(key string) {
	if due == nil {
		return nil
	}
	var mu sync.Mutex
	var last time.Time
	var later bool
	return func(key string) {
		mu.Lock()
		defer mu.Unlock()
		wait := extendedPeriod - time.Since(last)
		switch {
		case later: // it comes
		case wait <= 0:
			last = time.Now()
			due(key)
		default:
			later = true
			time.AfterFunc(wait, func() {
				mu.Lock()
				later, last = false, time.Now()
				mu.Unlock()
				due(key)
			})
		}
	}
}

// PodsyncHeartbeat returns the heartbeat of podsync that came last, nil when none has.
func (e *Entries) PodsyncHeartbeat() *busv1.Heartbeat {
	var newest *busv1.Heartbeat
	for key, beat := range e.heartbeats.All() {
		if !strings.HasPrefix(key, string(role.Podsync)+".") {
			continue
		}
		if newest == nil || beat.GetStarted().AsTime().After(newest.GetStarted().AsTime()) {
			newest = beat
		}
	}
	return newest
}

// Capacity returns what podsync says the node has, nil while it has not.
func (e *Entries) Capacity() *podsyncv1.Capacity {
	m, _ := e.capacity.Get(subject.NodeCapacity)
	return m
}

// Runtime returns what podsync last learned from the runtime, nil before.
func (e *Entries) Runtime() *podsyncv1.Runtime {
	m, _ := e.runtime.Get(subject.NodeRuntime)
	return m
}

// Volumes returns what podsync has put of volumes, as the bus has it.
func (e *Entries) Volumes() observe.VolumeEntries {
	inUse, _ := e.volumes.Get(subject.NodeVolumes)
	drivers, _ := e.csi.Get(subject.NodeCSI)
	return observe.VolumeEntries{Volumes: inUse, CSIDrivers: drivers}
}

// Showing takes the list of volumes that the Node is to show.
func (e *Entries) Showing(m *podsyncv1.Volumes) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.shown = m
}

// Extended returns the extended resources that resources reports, nil while it has not.
func (e *Entries) Extended() *resourcesv1.NodeResources {
	m, _ := e.extended.Get(subject.NodeResources)
	return m
}

// Images returns what imagegc lists, nil while it has not.
func (e *Entries) Images() *imagegcv1.Images {
	m, _ := e.images.Get(subject.NodeImages)
	return m
}

// Pressure returns what evictor says of the node's pressure, nil when it has not for a while.
func (e *Entries) Pressure() []pressure.State { return e.pressure.States() }

// Show lets ready see what the entries say of runtime and pleg, and how old that is.
func (e *Entries) Show(ready *observe.Ready) {
	runtime := observe.Value[*podsyncv1.Runtime]{Message: e.Runtime()}
	runtime.Age, runtime.Known = e.runtime.Age(subject.NodeRuntime)
	relist := observe.Value[*plegv1.Relist]{}
	relist.Message, _ = e.relist.Get(subject.RuntimeRelist)
	relist.Age, relist.Known = e.relist.Age(subject.RuntimeRelist)
	connected := e.client.Connected() && e.runtime.Synced() && e.relist.Synced()
	ready.Observe(connected, runtime, relist)
}

// Addresses puts NODE/addresses.
func (e *Entries) Addresses(list []v1.NodeAddress) {
	m := &nodestatusv1.Addresses{NodeName: e.nodeName}
	for _, a := range list {
		m.Addresses = append(m.Addresses, &nodestatusv1.Addresses_Address{Type: string(a.Type), Address: a.Address})
	}
	e.writer.Put(subject.NodeAddresses, m)
}

// Reported puts NODE/reported, after which nothing of nodestatus is missing.
func (e *Entries) Reported(n *v1.Node) {
	newest, _ := e.volumes.Get(subject.NodeVolumes)
	e.mu.Lock()
	shown := e.shown
	e.mu.Unlock()
	e.writer.Put(subject.NodeReported, reported(n, newest, shown))
	e.Complete()
}

// reported says what the API server has accepted. It names the first of podsync's lists that the Node has exactly:
// podsync mounts what it finds accepted, and another list may have had a volume that this one does not. While pods come
// one after the other, the newest list is one that the Node does not show yet, and the one that was shown counts.
func reported(n *v1.Node, lists ...*podsyncv1.Volumes) *nodestatusv1.Reported {
	m := &nodestatusv1.Reported{Registered: true}
	for _, name := range n.Status.VolumesInUse {
		m.VolumesInUse = append(m.VolumesInUse, string(name))
	}
	for _, list := range lists {
		if list != nil && slices.Equal(m.GetVolumesInUse(), list.GetInUse()) {
			m.VolumesInstance, m.VolumesGeneration = list.GetInstance(), list.GetGeneration()
			break
		}
	}
	return m
}

// Complete signals to readers that nothing of nodestatus is missing: they may drop what an earlier one has left
// besides.
func (e *Entries) Complete() { e.writer.Complete() }
