package hostip

import (
	"errors"
	"net"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"

	nodestatusv1 "github.com/microlet/microlet/proto/microlet/nodestatus/v1"
)

func report(pairs ...string) *nodestatusv1.Addresses {
	m := &nodestatusv1.Addresses{}
	for i := 0; i < len(pairs); i += 2 {
		m.Addresses = append(m.Addresses, &nodestatusv1.Addresses_Address{Type: pairs[i], Address: pairs[i+1]})
	}
	return m
}

// local are the addresses of the machine's interfaces.
func local(ips ...string) func() ([]net.Addr, error) {
	var all []net.Addr
	for _, ip := range ips {
		all = append(all, &net.IPNet{IP: net.ParseIP(ip), Mask: net.CIDRMask(32, 128)})
	}
	return func() ([]net.Addr, error) { return all, nil }
}

// TestOnlyAddressesOfTheNode: the report comes over the bus, and pods use the addresses in it.
func TestOnlyAddressesOfTheNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		node, interfaces := &v1.Node{}, local("192.0.2.1")
		var refused []string
		reported := report("InternalIP", "203.0.113.66", "InternalIP", "192.0.2.1", "InternalIP", "192.0.2.7",
			"InternalIP", "192.0.2.3")
		h := New(Options{
			Configured: []netip.Addr{netip.MustParseAddr("192.0.2.3")},
			Reported:   func() (*nodestatusv1.Addresses, bool) { return reported, true },
			Node:       func() *v1.Node { return node },
			Changed:    func() {},
			Local:      func() ([]net.Addr, error) { return interfaces() },
			Refused:    func(ips []string) { refused = ips },
		})
		if got := h.Known(); !slices.Equal(got, []string{"192.0.2.1", "192.0.2.3"}) ||
			!slices.Equal(refused, []string{"203.0.113.66", "192.0.2.7"}) {
			t.Errorf("%v known, %v refused", got, refused)
		}
		node.Status.Addresses = []v1.NodeAddress{{Type: v1.NodeInternalIP, Address: "192.0.2.7"}}
		time.Sleep(lookAgain)
		if got := h.Known(); !slices.Equal(got, []string{"192.0.2.1", "192.0.2.7", "192.0.2.3"}) {
			t.Errorf("%v known once the API has one more", got)
		}
		// A report of nothing but others' addresses is none.
		reported = report("InternalIP", "203.0.113.66")
		if got := h.Known(); !slices.Equal(got, []string{"192.0.2.3"}) {
			t.Errorf("%v known", got)
		}
		interfaces = func() ([]net.Addr, error) { return nil, errors.New("no answer of the kernel") }
		time.Sleep(lookAgain)
		if got := h.Known(); !slices.Equal(got, []string{"192.0.2.3"}) {
			t.Errorf("%v known without the kernel", got)
		}
	})
}

// TestMoreAddressesThanANodeHas: a bus that is taken over says what it likes.
func TestMoreAddressesThanANodeHas(t *testing.T) {
	pairs := []string{"InternalIP", "192.0.2.1"}
	for i := range 10 * maxAddresses {
		pairs = append(pairs, "InternalIP", netip.AddrFrom4([4]byte{203, 0, byte(i >> 8), byte(i)}).String())
	}
	var refused []string
	h := New(Options{
		Reported: func() (*nodestatusv1.Addresses, bool) { return report(pairs...), true },
		Node:     func() *v1.Node { return &v1.Node{} },
		Changed:  func() {},
		Local:    local("192.0.2.1"),
		Refused:  func(ips []string) { refused = ips },
	})
	if got := h.Known(); !slices.Equal(got, []string{"192.0.2.1"}) || len(refused) != maxAddresses-1 {
		t.Errorf("%v known, %d refused", got, len(refused))
	}
}

func TestHostIPs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var reported *nodestatusv1.Addresses
		changes, node := 0, &v1.Node{}
		h := New(Options{
			Configured: []netip.Addr{netip.IPv4Unspecified()},
			Reported:   func() (*nodestatusv1.Addresses, bool) { return reported, reported != nil },
			Node:       func() *v1.Node { return node },
			Changed:    func() { changes++ },
			Local:      local("192.0.2.1", "2001:db8::1", "198.51.100.1"),
		})
		route := net.ParseIP("192.0.2.9")
		h.guess = func(net.IP) (net.IP, error) {
			if route == nil {
				return nil, errors.New("no default route")
			}
			return route, nil
		}
		want := func(what string, known, assumed []string, awaited bool, times int) {
			t.Helper()
			if got := h.Known(); !slices.Equal(got, known) {
				t.Errorf("%s: %v known, want %v", what, got, known)
			}
			if got := h.Assumed(); !slices.Equal(got, assumed) {
				t.Errorf("%s: %v assumed, want %v", what, got, assumed)
			}
			if h.Awaited() != awaited || changes != times {
				t.Errorf("%s: awaited %v, %d changes, want %v, %d", what, h.Awaited(), changes, awaited, times)
			}
		}
		heard := func(m *nodestatusv1.Addresses) { reported = m; h.Heard() }
		guess := []string{"192.0.2.9"}
		want("nothing", nil, guess, true, 0)
		node.Status.Addresses = []v1.NodeAddress{{Type: v1.NodeHostName, Address: "n"},
			{Type: v1.NodeInternalIP, Address: "192.0.2.5"}}
		want("the Node, which may be old", nil, guess, true, 0)
		time.Sleep(patience)
		want("nothing else for long", []string{"192.0.2.5"}, []string{"192.0.2.5"}, false, 0)
		node = &v1.Node{}
		want("nothing for long", nil, guess, false, 0)
		route = nil
		want("no route either", nil, nil, false, 0)
		heard(report("InternalIP", "192.0.2.1", "InternalIP", "2001:db8::1", "Hostname", "n"))
		both := []string{"192.0.2.1", "2001:db8::1"}
		want("reported", both, both, false, 1)
		h.Heard()
		want("the same again", both, both, false, 1)
		heard(report("Hostname", "n", "ExternalIP", "198.51.100.1"))
		want("no internal one", []string{"198.51.100.1"}, []string{"198.51.100.1"}, false, 2)
		heard(report("Hostname", "n"))
		want("none", nil, nil, false, 3)

		flag := New(Options{Configured: []netip.Addr{netip.MustParseAddr("192.0.2.3")}, Reported: h.o.Reported})
		if got := flag.Known(); !slices.Equal(got, []string{"192.0.2.3"}) || flag.Awaited() {
			t.Errorf("--node-ip: %v known, awaited %v", got, flag.Awaited())
		}
	})
}

func TestExternalCloudIsNotGuessed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		node := &v1.Node{Status: v1.NodeStatus{Addresses: []v1.NodeAddress{{Type: v1.NodeHostName, Address: "n"}}}}
		o := Options{
			ExternalCloud: true,
			Reported:      func() (*nodestatusv1.Addresses, bool) { return report("Hostname", "n"), true },
			Node:          func() *v1.Node { return node },
		}
		route := func(net.IP) (net.IP, error) { return net.ParseIP("192.0.2.9"), nil }
		h := New(o)
		h.guess = route
		time.Sleep(patience)
		if got := h.Assumed(); got != nil {
			t.Errorf("assumes %v before the cloud controller manager has written an address", got)
		}
		o.Configured = []netip.Addr{netip.IPv4Unspecified()}
		family := New(o)
		family.guess = route
		if got := family.Assumed(); !slices.Equal(got, []string{"192.0.2.9"}) {
			t.Errorf("assumes %v with --node-ip=0.0.0.0", got)
		}
		node.Status.Addresses = []v1.NodeAddress{{Type: v1.NodeExternalIP, Address: "198.51.100.1"}}
		if got := h.Assumed(); !slices.Equal(got, []string{"198.51.100.1"}) {
			t.Errorf("assumes %v once the cloud controller manager has written an address", got)
		}
	})
}
