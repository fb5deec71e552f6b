package node

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	v1 "k8s.io/api/core/v1"
)

// Network is what the node's addresses are found with. Its calls may hang as long as ctx lets them.
type Network interface {
	// Interfaces returns the addresses of the host's network interfaces.
	Interfaces() ([]netip.Addr, error)
	// Lookup resolves a name.
	Lookup(ctx context.Context, name string) ([]netip.Addr, error)
	// DefaultRoute returns the address of the interface with the default route of the family that
	// prefer has; an invalid prefer leaves the choice.
	DefaultRoute(prefer netip.Addr) (netip.Addr, error)
}

// Addresses finds the node's addresses in the kubelet's order: --node-ip, the hostname if it is an
// address, what the node's name resolves to on this host, the interface with the default route. IPv4
// is preferred unless --node-ip is an IPv6 address. Without an own opinion (external cloud, no
// --node-ip) it is the hostname alone.
func (s Settings) Addresses(ctx context.Context, n Network) ([]v1.NodeAddress, error) {
	var first, second netip.Addr
	if len(s.NodeIPs) > 0 {
		first = s.NodeIPs[0]
	}
	if len(s.NodeIPs) > 1 {
		second = s.NodeIPs[1]
	}
	hostname := v1.NodeAddress{Type: v1.NodeHostName, Address: s.Hostname}
	internal := func(ip netip.Addr) v1.NodeAddress {
		return v1.NodeAddress{Type: v1.NodeInternalIP, Address: ip.Unmap().String()}
	}
	for _, ip := range []netip.Addr{first, second} {
		if !specified(ip) {
			continue
		}
		if err := usable(ip, n); err != nil {
			return nil, fmt.Errorf("--node-ip: %w", err)
		}
	}
	switch {
	case s.ExternalCloud && !first.IsValid():
		return []v1.NodeAddress{hostname}, nil
	case specified(first) && specified(second):
		return []v1.NodeAddress{internal(first), internal(second), hostname}, nil
	case specified(first):
		return []v1.NodeAddress{internal(first), hostname}, nil
	}
	if ip, err := netip.ParseAddr(s.Hostname); err == nil {
		return []v1.NodeAddress{internal(ip), hostname}, nil
	}
	ip, found := s.lookup(ctx, n, !first.IsValid() || first.Unmap().Is4())
	if found {
		return []v1.NodeAddress{internal(ip), hostname}, nil
	}
	if ctx.Err() != nil {
		return nil, fmt.Errorf("%w: %w", ErrNameServer, context.Cause(ctx))
	}
	ip, err := n.DefaultRoute(first)
	if err != nil {
		return nil,
			fmt.Errorf("no address of node %s: its name does not resolve to one of this host's, and there is no default "+
				"route; set --node-ip: %w", s.Name, err)
	}
	return []v1.NodeAddress{internal(ip), hostname}, nil
}

// ErrNameServer says that the node's name was not looked up in time. That another address than that of the name is
// found then says nothing of the node.
var ErrNameServer = errors.New("the node's name is not resolved in time")

// lookup returns what the node's name resolves to, if that is this host's.
func (s Settings) lookup(ctx context.Context, n Network, preferIPv4 bool) (netip.Addr, bool) {
	ips, err := n.Lookup(ctx, s.Name)
	if err != nil {
		return netip.Addr{}, false // a node's name need not resolve
	}
	var other netip.Addr
	for _, ip := range ips {
		if usable(ip, n) != nil {
			continue
		}
		if ip.Unmap().Is4() == preferIPv4 {
			return ip, true
		}
		if !other.IsValid() {
			other = ip
		}
	}
	return other, other.IsValid()
}

func specified(ip netip.Addr) bool { return ip.IsValid() && !ip.IsUnspecified() }

// usable returns why a node cannot have the address.
func usable(ip netip.Addr, n Network) error {
	ip = ip.Unmap()
	switch {
	case ip.IsLoopback():
		return fmt.Errorf("%s is a loopback address, other nodes cannot reach it", ip)
	case ip.IsMulticast():
		return fmt.Errorf("%s is a multicast address", ip)
	case ip.IsLinkLocalUnicast():
		return fmt.Errorf("%s is a link-local address, other nodes cannot reach it", ip)
	case ip.IsUnspecified():
		return fmt.Errorf("%s is no address", ip)
	}
	own, err := n.Interfaces()
	if err != nil {
		return err
	}
	for _, a := range own {
		if a.Unmap().WithZone("") == ip.WithZone("") {
			return nil
		}
	}
	return fmt.Errorf("%s is on none of the host's network interfaces", ip)
}
