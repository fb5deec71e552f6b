package test

import (
	"slices"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/microlet/microlet/proto/subject"
)

// TestACloudControllerManager: the node registers with the taint and without an address. What the cloud controller
// manager writes stays, also over a restart, and the other services learn it.
func TestACloudControllerManager(t *testing.T) {
	h := newHost(t)
	h.cloudProvider = "external"
	stop := h.start()
	h.startOthers()
	h.await("registered with the taint", func(a *apiserver) bool {
		return a.node != nil && slices.ContainsFunc(a.node.Spec.Taints, func(taint v1.Taint) bool {
			return taint.Key == "node.cloudprovider.kubernetes.io/uninitialized" && taint.Value == "true" &&
				taint.Effect == v1.TaintEffectNoSchedule
		})
	})
	hostname := []v1.NodeAddress{{Type: v1.NodeHostName, Address: nodeName}}
	h.await("ready", func(a *apiserver) bool {
		c := ready(a)
		return c != nil && c.Status == v1.ConditionTrue && slices.Equal(a.node.Status.Addresses, hostname)
	})

	given := []v1.NodeAddress{{Type: v1.NodeExternalIP, Address: "203.0.113.1"},
		{Type: v1.NodeInternalIP, Address: "192.0.2.7"}, {Type: v1.NodeHostName, Address: nodeName}}
	h.api.mu.Lock()
	n := h.api.node.DeepCopy()
	n.Spec.Taints, n.Status.Addresses = nil, given
	h.api.writeNode(n)
	h.api.mu.Unlock()
	h.await("NODE/addresses has the cloud's", func(*apiserver) bool {
		m, ok := h.reads.Get(subject.NodeAddresses)
		return ok && len(m.GetAddresses()) == len(given) && m.GetAddresses()[1].GetAddress() == "192.0.2.7"
	})

	stop()
	h.api.mu.Lock()
	version := h.api.version
	h.api.mu.Unlock()
	stop = h.start()
	h.await("reported after a restart", func(a *apiserver) bool { return a.version > version })
	h.api.mu.Lock()
	if n := h.api.node; !slices.Equal(n.Status.Addresses, given) || len(n.Spec.Taints) > 0 {
		t.Errorf("the cloud's Node became %v, taints %v", n.Status.Addresses, n.Spec.Taints)
	}
	h.api.mu.Unlock()
	stop()
}
