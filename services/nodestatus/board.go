package nodestatus

import (
	"strings"

	v1 "k8s.io/api/core/v1"

	busv1 "github.com/microlet/microlet/proto/microlet/bus/v1"
	nodestatusv1 "github.com/microlet/microlet/proto/microlet/nodestatus/v1"
	plegv1 "github.com/microlet/microlet/proto/microlet/pleg/v1"
	podsyncv1 "github.com/microlet/microlet/proto/microlet/podsync/v1"
	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/proto/subject"
	"github.com/microlet/microlet/services/internal/bus"
	"github.com/microlet/microlet/services/internal/service"
	"github.com/microlet/microlet/services/nodestatus/internal/observe"
)

// board is what nodestatus reads from the bus, and what it puts there.
type board struct {
	nodeName   string
	client     *bus.Client
	heartbeats *bus.View[*busv1.Heartbeat]
	relist     *bus.View[*plegv1.Relist]
	runtime    *bus.View[*podsyncv1.Runtime]
	capacity   *bus.View[*podsyncv1.Capacity]
	writer     *bus.Writer
}

func newBoard(s *service.Service) *board {
	return &board{
		nodeName:   s.Config.NodeName,
		client:     s.Bus,
		heartbeats: bus.Watch[busv1.Heartbeat](s.Bus, subject.Heartbeats, subject.HeartbeatKeys(role.Podsync), nil),
		relist:     bus.Watch[plegv1.Relist](s.Bus, subject.Runtime, subject.RuntimeRelist, nil),
		runtime:    bus.Watch[podsyncv1.Runtime](s.Bus, subject.Node, subject.NodeRuntime, nil),
		capacity:   bus.Watch[podsyncv1.Capacity](s.Bus, subject.Node, subject.NodeCapacity, nil),
		writer:     s.Bus.Own(subject.Node),
	}
}

// podsyncHeartbeat returns the heartbeat of podsync that came last, nil when none has.
func (b *board) podsyncHeartbeat() *busv1.Heartbeat {
	var newest *busv1.Heartbeat
	for key, beat := range b.heartbeats.All() {
		if !strings.HasPrefix(key, string(role.Podsync)+".") {
			continue
		}
		if newest == nil || beat.GetStarted().AsTime().After(newest.GetStarted().AsTime()) {
			newest = beat
		}
	}
	return newest
}

func (b *board) podsyncCapacity() *podsyncv1.Capacity {
	m, _ := b.capacity.Get(subject.NodeCapacity)
	return m
}

func (b *board) podsyncRuntime() *podsyncv1.Runtime {
	m, _ := b.runtime.Get(subject.NodeRuntime)
	return m
}

// judge lets ready see the board.
func (b *board) judge(ready *observe.Ready) {
	runtime := observe.Value[*podsyncv1.Runtime]{Message: b.podsyncRuntime()}
	runtime.Age, runtime.Known = b.runtime.Age(subject.NodeRuntime)
	relist := observe.Value[*plegv1.Relist]{}
	relist.Message, _ = b.relist.Get(subject.RuntimeRelist)
	relist.Age, relist.Known = b.relist.Age(subject.RuntimeRelist)
	connected := b.client.Connected() && b.runtime.Synced() && b.relist.Synced()
	ready.Observe(connected, runtime, relist)
}

// addresses puts NODE/addresses.
func (b *board) addresses(list []v1.NodeAddress) {
	m := &nodestatusv1.Addresses{NodeName: b.nodeName}
	for _, a := range list {
		m.Addresses = append(m.Addresses, &nodestatusv1.Addresses_Address{Type: string(a.Type), Address: a.Address})
	}
	b.writer.Put(subject.NodeAddresses, m)
}

// reported puts NODE/reported; after it, the board has all that it ever has.
func (b *board) reported(n *v1.Node) {
	m := &nodestatusv1.Reported{Registered: true}
	for _, name := range n.Status.VolumesInUse {
		m.VolumesInUse = append(m.VolumesInUse, string(name))
	}
	b.writer.Put(subject.NodeReported, m)
	b.writer.Complete()
}
