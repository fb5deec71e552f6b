// Package hostip provides the addresses of the node for pods.
//
// The addresses come from --node-ip, from nodestatus, or from the status of the Node if nodestatus is down. A
// container that uses an address in its environment waits for them, but only for a limited time, because starting a
// pod must not depend on nodestatus. It then gets the address of the default route. nodestatus may find another
// address, because it also resolves the node name. A pod status never contains such a guess.
package hostip

import (
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	utilnet "k8s.io/apimachinery/pkg/util/net"

	nodestatusv1 "github.com/microlet/microlet/proto/microlet/nodestatus/v1"
)

// patience is how long after podsync's start a container waits for nodestatus, which starts beside podsync and reports
// within about a second.
const patience = 10 * time.Second

// lookAgain is how long an address counts as another machine's: an interface, or the API's Node, may have it later.
const lookAgain = time.Second

// maxAddresses is more than a node has. Each reported address is looked for among the others, again with each status of
// each pod, and a report of 2 MiB would have 190,000.
const maxAddresses = 64

// Options of HostIPs.
type Options struct {
	// Configured are the addresses of --node-ip. An unspecified one names a family and no address.
	Configured []netip.Addr
	// ExternalCloud is --cloud-provider=external: without --node-ip, the cloud controller manager alone knows the
	// addresses.
	ExternalCloud bool
	// Reported is what nodestatus reported last.
	Reported func() (*nodestatusv1.Addresses, bool)
	// Node is this node's object as far as the API has sent it. Its addresses serve when nodestatus stays away; they
	// may be those of before a restart of the machine.
	Node func() *v1.Node
	// Changed is called when other addresses are known than before. It must not block.
	Changed func()
	// Local returns the addresses of the machine's interfaces. Default: the kernel's word.
	Local func() ([]net.Addr, error)
	// Refused is called when addresses were reported that the node does not have. Nil is not called.
	Refused func(ips []string)
}

// HostIPs are the node's addresses. Its methods may be called at the same time.
type HostIPs struct {
	o          Options
	configured []string
	began      time.Time
	guess      func(net.IP) (net.IP, error)

	mu   sync.Mutex
	last []string
	// said is what was reported when looked was, and others are those of it that the node does not have.
	said, others []string
	looked       time.Time
}

// New returns what is known at podsync's start.
func New(o Options) *HostIPs {
	if o.Local == nil {
		o.Local = net.InterfaceAddrs
	}
	if o.Refused == nil {
		o.Refused = func([]string) {}
	}
	h := &HostIPs{o: o, began: time.Now(), guess: utilnet.ResolveBindAddress}
	for _, ip := range o.Configured {
		if !ip.IsUnspecified() {
			h.configured = append(h.configured, ip.Unmap().String())
		}
	}
	h.last = h.configured
	return h
}

// Known returns the node's addresses, the primary one first; empty while they are unknown.
func (h *HostIPs) Known() []string {
	if reported, ok := h.o.Reported(); ok {
		said := reported.GetAddresses()
		said = said[:min(len(said), maxAddresses)]
		list := make([]v1.NodeAddress, 0, len(said))
		for _, a := range said {
			list = append(list, v1.NodeAddress{Type: v1.NodeAddressType(a.GetType()), Address: a.GetAddress()})
		}
		list = h.own(list)
		if ips := hostIPs(list); len(ips) > 0 {
			return ips
		}
	}
	if len(h.configured) > 0 || time.Since(h.began) < patience {
		return h.configured
	}
	return hostIPs(h.o.Node().Status.Addresses) // where the kubelet, too, has them from
}

// own leaves out the addresses that the node does not have: those that neither an interface of the machine has, nor
// --node-ip names, nor the API has of the Node. nodestatus reports none of them, but the report comes over the bus, and
// pods, and who looks for pods in the host's network, talk to what it says.
func (h *HostIPs) own(list []v1.NodeAddress) []v1.NodeAddress {
	var said []string
	for _, a := range list {
		if net.ParseIP(a.Address) != nil {
			said = append(said, a.Address)
		}
	}
	others := h.strangers(said)
	return slices.DeleteFunc(list, func(a v1.NodeAddress) bool { return slices.Contains(others, a.Address) })
}

// strangers are those of the addresses that the node does not have.
func (h *HostIPs) strangers(said []string) []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	if slices.Equal(said, h.said) && (len(h.others) == 0 || time.Since(h.looked) < lookAgain) {
		return h.others
	}
	local, err := h.o.Local()
	if err != nil {
		local = nil // the others count
	}
	h.said, h.looked, h.others = said, time.Now(), slices.DeleteFunc(slices.Clone(said), func(text string) bool {
		ip := net.ParseIP(text)
		return slices.Contains(h.configured, text) ||
			slices.ContainsFunc(local, func(a net.Addr) bool { n, ok := a.(*net.IPNet); return ok && n.IP.Equal(ip) }) ||
			slices.ContainsFunc(h.o.Node().Status.Addresses, func(a v1.NodeAddress) bool { return a.Address == text })
	})
	if len(h.others) > 0 {
		h.o.Refused(h.others)
	}
	return h.others
}

// hostIPs are the addresses that the kubelet takes for the host's: the internal ones or, if there is none, the
// external.
func hostIPs(list []v1.NodeAddress) (ips []string) {
	for _, kind := range []v1.NodeAddressType{v1.NodeInternalIP, v1.NodeExternalIP} {
		for _, a := range list {
			if a.Type == kind && net.ParseIP(a.Address) != nil {
				ips = append(ips, a.Address)
			}
		}
		if len(ips) > 0 {
			return ips
		}
	}
	return nil
}

// Assumed returns Known or, while nothing is, the address of the interface with the default route. Where the cloud
// controller manager decides, it does not guess: as with the kubelet, a container that needs an address does not start.
func (h *HostIPs) Assumed() []string {
	if known := h.Known(); len(known) > 0 {
		return known
	}
	if h.o.ExternalCloud && len(h.o.Configured) == 0 {
		return nil
	}
	if ip, err := h.guess(nil); err == nil {
		return []string{ip.String()}
	}
	return nil
}

// Awaited reports whether the addresses are unknown, and likely to be known in a moment.
func (h *HostIPs) Awaited() bool { return len(h.Known()) == 0 && time.Since(h.began) < patience }

// Heard reports that nodestatus has reported.
func (h *HostIPs) Heard() {
	known := h.Known()
	h.mu.Lock()
	changed := !slices.Equal(known, h.last)
	h.last = known
	h.mu.Unlock()
	if changed {
		h.o.Changed()
	}
}
