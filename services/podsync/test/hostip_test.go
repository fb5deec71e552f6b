package test

import (
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	nodestatusv1 "github.com/microlet/microlet/proto/microlet/nodestatus/v1"
	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/proto/subject"
	"github.com/microlet/microlet/services/internal/bus"
	"github.com/microlet/microlet/services/internal/testing/proctest"
)

// TestTheNodesAddressIsNoGuess: what the default route suggests before nodestatus has published the node's address is
// in no status and, as far as nodestatus is not away for long, in no container.
func TestTheNodesAddressIsNoGuess(t *testing.T) {
	const address = "127.0.0.1" // which the machine has, and no default route
	n := newNode(t)
	r := n.reads()
	n.start()
	n.write("host.yaml", strings.Replace(manifest("host"), "spec:", "spec:\n  hostNetwork: true", 1))
	n.write("shows.yaml",
		strings.Replace(manifest("shows"), "containers: [{",
			"containers: [{env: [{name: HOST, valueFrom: {fieldRef: {fieldPath: status.hostIP}}}], ", 1))
	n.put("a")
	n.runs("host") // what needs no address of the node waits for none
	n.runs("a")
	statuses := func() (all []v1.PodStatus) {
		for _, m := range r.statuses.All() {
			s := v1.PodStatus{}
			if err := s.Unmarshal(m.GetStatus()); err != nil {
				t.Fatal(err)
			}
			all = append(all, s)
		}
		return all
	}
	proctest.Await(t, soon, "statuses of all three", func() bool { return len(statuses()) == 3 })
	for _, s := range statuses() {
		if s.HostIP != "" {
			t.Errorf("host IP %s before it is known", s.HostIP)
		}
	}

	var node *bus.Writer
	n.Client(role.NodeStatus, func(c *bus.Client) { node = c.Own(subject.Node) })
	node.Put(subject.NodeAddresses,
		&nodestatusv1.Addresses{
			NodeName:  "n",
			Addresses: []*nodestatusv1.Addresses_Address{{Type: "InternalIP", Address: address}},
		})
	n.runs("shows")
	proctest.Await(t, soon, "statuses with the node's address and the pods'", func() bool {
		return !slices.ContainsFunc(statuses(),
			func(s v1.PodStatus) bool { return s.HostIP != address || s.PodIP == "" })
	})
	own := 0
	for _, s := range statuses() {
		if s.PodIP == address {
			own++
		}
	}
	if own != 1 {
		t.Errorf("%d pods have the node's address as theirs, want that on its network alone", own)
	}
	for _, call := range n.runtime.Calls("CreateContainer") {
		for _, e := range call.Request.(*runtimeapi.CreateContainerRequest).GetConfig().GetEnvs() {
			if e.GetKey() == "HOST" && string(e.GetValue()) != address {
				t.Errorf("a container got %s", e.GetValue())
			}
		}
	}
}
