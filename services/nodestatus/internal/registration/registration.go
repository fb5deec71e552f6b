// Package registration acts when the API server has the Node: when one is found at the start, and when it accepts
// one.
//
// A node that was ready before this service started, in the same boot, stays ready until the opposite is known.
// Once the API server has accepted the Node, the other services learn of it, the kubelet's event Starting is sent,
// and the Lease is renewed.
package registration

import (
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"

	"github.com/microlet/microlet/services/internal/nodeinfo"
	"github.com/microlet/microlet/services/nodestatus/internal/node"
)

// Readiness is that of the node; see observe.Ready.
type Readiness interface {
	// Assume takes the node for ready until the opposite is known.
	Assume()
}

// Bus notifies the other services; see nodebus.Entries.
type Bus interface {
	Reported(n *v1.Node)
}

// Options of a Registration.
type Options struct {
	Ready Readiness
	Bus   Bus
	// Machine identifies the machine and its boot.
	Machine func() (nodeinfo.Machine, error)
	// Watched returns the Node as the watch saw it last, nil when it saw none.
	Watched func() *v1.Node
	Events  record.EventRecorder
	// Registered is called once, when the API server has accepted the Node for the first time. It must not block.
	Registered func()
}

// Registration is this node's. Its methods may be called from any goroutine.
type Registration struct {
	o    Options
	once sync.Once

	mu  sync.Mutex
	uid types.UID
	// watched is the UID of the Node that the watch had last.
	watched types.UID
}

// New returns the registration of a node of which the API server has said nothing.
func New(o Options) *Registration { return &Registration{o: o} }

// Found takes over from an earlier nodestatus, or a kubelet.
func (r *Registration) Found(n *v1.Node) {
	machine, _ := r.o.Machine() // a boot id that cannot be read assumes nothing
	if node.IsReady(n) && machine.BootID != "" && machine.BootID == n.Status.NodeInfo.BootID {
		r.o.Ready.Assume()
	}
}

// Accepted takes the Node as the API server accepted it.
func (r *Registration) Accepted(n *v1.Node) {
	r.mu.Lock()
	r.uid = n.UID
	r.look()
	r.mu.Unlock()
	r.o.Bus.Reported(n)
	r.once.Do(func() {
		r.Record(n, node.Event{Type: v1.EventTypeNormal, Reason: "Starting", Message: "Starting kubelet."})
		r.o.Registered()
	})
}

// Record sends an event about the Node.
func (r *Registration) Record(n *v1.Node, e node.Event) {
	ref := &v1.ObjectReference{Kind: "Node", APIVersion: "v1", Name: n.Name, UID: n.UID}
	r.o.Events.Event(ref, e.Type, e.Reason, e.Message)
}

// NodeUID is the Node's as the watch has it or, before the watch has one, as it was accepted last; empty while
// there is no Node. What a Node owns that was deleted is garbage, so the Lease must not be such a Node's.
func (r *Registration) NodeUID() types.UID {
	r.mu.Lock()
	defer r.mu.Unlock()
	if n := r.look(); n != nil {
		return n.UID
	}
	if r.uid == r.watched {
		return "" // it was there
	}
	return r.uid
}

// look asks the watch for the Node. It is called with mu held.
func (r *Registration) look() *v1.Node {
	n := r.o.Watched()
	if n != nil {
		r.watched = n.UID
	}
	return n
}
