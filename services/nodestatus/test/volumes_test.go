package test

import (
	"slices"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	nodestatusv1 "github.com/microlet/microlet/proto/microlet/nodestatus/v1"
	podsyncv1 "github.com/microlet/microlet/proto/microlet/podsync/v1"
	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/proto/subject"
	"github.com/microlet/microlet/services/internal/bus"
)

// What podsync puts is in the Node's status, and then podsync learns that it is, even if either was away in between. A
// list that is gone with the bus changes nothing.
func TestVolumesInUse(t *testing.T) {
	h := newHost(t)
	stop := h.start()
	h.startOthers()
	var reported *bus.View[*nodestatusv1.Reported]
	h.Client(role.Podsync, func(c *bus.Client) {
		reported = bus.Watch[nodestatusv1.Reported](c, subject.Node, subject.NodeReported, nil)
	})
	put := func(generation uint64, names ...string) {
		h.writes.Put(subject.NodeVolumes, &podsyncv1.Volumes{InUse: names, Instance: "i", Generation: generation})
	}
	inUse := func(names ...v1.UniqueVolumeName) func(*apiserver) bool {
		return func(a *apiserver) bool { return a.node != nil && slices.Equal(a.node.Status.VolumesInUse, names) }
	}
	accepted := func(generation uint64) func(*apiserver) bool {
		return func(*apiserver) bool {
			m, _ := reported.Get(subject.NodeReported)
			return m.GetVolumesInstance() == "i" && m.GetVolumesGeneration() == generation
		}
	}
	put(1, "a", "b")
	h.await("two are in use", inUse("a", "b"))
	h.await("podsync hears of it", accepted(1))

	h.api.stop()
	put(2, "b")
	time.Sleep(time.Second) // the outage itself: what is not accepted must not be reported
	if accepted(2)(h.api) {
		t.Error("a list that no apiserver has seen is accepted")
	}
	h.api.start()
	h.await("one is in use", inUse("b"))
	h.await("podsync hears of it", accepted(2))

	stop()
	put(3, "b", "c")
	h.start()
	h.await("what was put while nodestatus was away is in use", inUse("b", "c"))
	h.await("podsync hears of it", accepted(3))
}

// An attacker who controls the bus adds no label to the Node, and has no volume detached: podsync itself is asked.
func TestForgedVolumes(t *testing.T) {
	h := newHost(t)
	driver := func(zone string) *podsyncv1.CSIDrivers {
		return &podsyncv1.CSIDrivers{Drivers: []*podsyncv1.CSIDrivers_Driver{
			{Name: "d", NodeId: "n", Topology: map[string]string{"topology.d/" + zone: zone}}}}
	}
	h.podsync.setVolumes(&podsyncv1.GetNodeVolumesResponse{
		Volumes: &podsyncv1.Volumes{InUse: []string{"mounted"}}, CsiDrivers: driver("here"),
	})
	h.start()
	h.startOthers()
	h.writes.Put(subject.NodeVolumes, &podsyncv1.Volumes{})
	h.writes.Put(subject.NodeCSI, driver("forged"))
	shows := func(volumes ...v1.UniqueVolumeName) func(a *apiserver) bool {
		return func(a *apiserver) bool {
			return a.node != nil && a.node.Labels["topology.d/here"] != "" && slices.Equal(a.node.Status.VolumesInUse, volumes)
		}
	}
	h.await("the Node shows what podsync says", shows("mounted"))

	h.podsync.setVolumes(&podsyncv1.GetNodeVolumesResponse{
		Volumes: &podsyncv1.Volumes{InUse: []string{"mounted", "second"}}, CsiDrivers: driver("here"),
	})
	h.writes.Put(subject.NodeVolumes, &podsyncv1.Volumes{InUse: []string{"forged"}})
	h.await("the Node shows a second volume", shows("mounted", "second"))
	h.await("the Node has no other label", func(a *apiserver) bool { return a.node.Labels["topology.d/forged"] == "" })
}
