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
