package observe

import (
	"context"
	"fmt"
	"net"
	"net/netip"

	utilnet "k8s.io/apimachinery/pkg/util/net"

	"github.com/microlet/microlet/services/nodestatus/internal/node"
)

// HostNetwork finds addresses on the host itself.
type HostNetwork struct{}

var _ node.Network = HostNetwork{}

// Interfaces implements node.Network.
func (HostNetwork) Interfaces() ([]netip.Addr, error) {
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return nil, fmt.Errorf("list network interfaces: %w", err)
	}
	var out []netip.Addr
	for _, a := range addrs {
		if prefix, err := netip.ParsePrefix(a.String()); err == nil {
			out = append(out, prefix.Addr())
		}
	}
	return out, nil
}

// Lookup implements node.Network.
func (HostNetwork) Lookup(ctx context.Context, name string) ([]netip.Addr, error) {
	return net.DefaultResolver.LookupNetIP(ctx, "ip", name)
}

// DefaultRoute implements node.Network.
func (HostNetwork) DefaultRoute(prefer netip.Addr) (netip.Addr, error) {
	var bind net.IP
	if prefer.IsValid() {
		bind = prefer.AsSlice()
	}
	ip, err := utilnet.ResolveBindAddress(bind)
	if err != nil {
		return netip.Addr{}, err
	}
	addr, ok := netip.AddrFromSlice(ip)
	if !ok {
		return netip.Addr{}, fmt.Errorf("%v is no address", ip)
	}
	return addr.Unmap(), nil
}
