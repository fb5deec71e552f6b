package test

import (
	"testing"

	v1 "k8s.io/api/core/v1"

	resourcesv1 "github.com/microlet/microlet/proto/microlet/resources/v1"
	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/proto/subject"
	"github.com/microlet/microlet/services/internal/bus"
)

// What resources puts about devices is in the Node's status at once.
func TestExtendedResources(t *testing.T) {
	h := newHost(t)
	h.start()
	h.startOthers()
	var writer *bus.Writer
	h.Client(role.Resources, func(c *bus.Client) { writer = c.Own(subject.Node) })
	for _, want := range [][2]int64{{2, 2}, {2, 1}, {0, 0}} {
		writer.Put(subject.NodeResources, &resourcesv1.NodeResources{Resources: []*resourcesv1.NodeResources_Resource{
			{Name: "example.com/gpu", Capacity: want[0], Allocatable: want[1]},
		}})
		h.await("the Node has the devices", func(a *apiserver) bool {
			if a.node == nil {
				return false
			}
			const gpu = v1.ResourceName("example.com/gpu")
			capacity, has := a.node.Status.Capacity[gpu]
			allocatable := a.node.Status.Allocatable[gpu]
			return has && capacity.Value() == want[0] && allocatable.Value() == want[1]
		})
	}
}
