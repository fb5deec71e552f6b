package network

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

const forwardFile = "/proc/sys/net/ipv4/ip_forward"

// EnableForwarding switches IPv4 forwarding on, without which pods reach
// nothing outside their node. It reports whether it was off. It stays on when
// the rig goes: others may rely on it by then.
func EnableForwarding() (changed bool, err error) {
	now, err := os.ReadFile(forwardFile)
	if err != nil {
		return false, fmt.Errorf("read net.ipv4.ip_forward: %w", err)
	}
	if strings.TrimSpace(string(now)) == "1" {
		return false, nil
	}
	if err := os.WriteFile(forwardFile, []byte("1"), 0); err != nil {
		return false, fmt.Errorf("set net.ipv4.ip_forward to 1 (needed to forward pods' packets): %w", err)
	}
	return true, nil
}

// Setup makes the bridge with its address, the link and the route to a node on
// a machine of its own, and the instance's rules.
func Setup(plan Plan, name string) error {
	if err := makeBridge(plan, name); err != nil {
		return err
	}
	if plan.Tap != "" {
		if err := joinMachine(plan); err != nil {
			return err
		}
	}
	return addRules(plan, name)
}

// makeBridge makes the bridge as the CNI plugin of that name would: the plugin
// then uses it as it is. The address has to be there before the first
// pod is, since the API server listens on it.
func makeBridge(plan Plan, name string) error {
	attrs := netlink.NewLinkAttrs()
	attrs.Name = plan.Bridge
	bridge := &netlink.Bridge{LinkAttrs: attrs}
	if err := netlink.LinkAdd(bridge); err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("make bridge %s: %w", plan.Bridge, err)
	}
	link, err := netlink.LinkByName(plan.Bridge)
	if err != nil {
		return fmt.Errorf("make bridge %s: %w", plan.Bridge, err)
	}
	if link.Type() != "bridge" {
		return fmt.Errorf("make bridge %s: there is a %s of that name: remove it", plan.Bridge, link.Type())
	}
	// The alias names its instance when the record is lost.
	if err := netlink.LinkSetAlias(link, comment(name)); err != nil {
		return fmt.Errorf("give bridge %s its alias: %w", plan.Bridge, err)
	}
	addr := &netlink.Addr{IPNet: ipNet(plan.Server)}
	if err := netlink.AddrReplace(link, addr); err != nil {
		return fmt.Errorf("give bridge %s the address %s: %w", plan.Bridge, plan.Server, err)
	}
	if err := netlink.LinkSetUp(link); err != nil {
		return fmt.Errorf("set bridge %s up: %w", plan.Bridge, err)
	}
	return nil
}

// joinMachine makes the tap device in the bridge, and the route to the pods behind it. Both go with the bridge.
func joinMachine(plan Plan) error {
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("make tap device %s: %w", plan.Tap, err)
	}
	defer h.Close()
	tap, err := AddTap(h, plan.Tap)
	if err != nil {
		return err
	}
	bridge, err := h.LinkByName(plan.Bridge)
	if err == nil {
		err = h.LinkSetMaster(tap, bridge)
	}
	if err != nil {
		return fmt.Errorf("put %s into bridge %s: %w", plan.Tap, plan.Bridge, err)
	}
	if err := h.RouteReplace(&netlink.Route{LinkIndex: bridge.Attrs().Index, Dst: ipNet(plan.PodCIDR),
		Gw: plan.NodeIP.AsSlice()}); err != nil {
		return fmt.Errorf("route pods' network %s to %s: %w", plan.PodCIDR, plan.NodeIP, err)
	}
	return nil
}

// AddTap makes a tap device for a machine, and sets it up. The device stays when no process has it open.
func AddTap(h *netlink.Handle, name string) (netlink.Link, error) {
	attrs := netlink.NewLinkAttrs()
	attrs.Name = name
	tap := &netlink.Tuntap{
		LinkAttrs: attrs,
		Mode:      netlink.TUNTAP_MODE_TAP,
		Flags:     netlink.TUNTAP_NO_PI | netlink.TUNTAP_VNET_HDR,
	}
	if err := h.LinkAdd(tap); err != nil {
		return nil, fmt.Errorf("make tap device %s: %w", name, err)
	}
	link, err := h.LinkByName(name)
	if err != nil {
		return nil, fmt.Errorf("make tap device %s: %w", name, err)
	}
	if err := h.LinkSetUp(link); err != nil {
		return nil, fmt.Errorf("set tap device %s up: %w", name, err)
	}
	return link, nil
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), 32)}
}

// bridgePorts returns the links that are in the bridge.
func bridgePorts(bridge netlink.Link) ([]netlink.Link, error) {
	links, err := netlink.LinkList()
	if err != nil {
		return nil, fmt.Errorf("list links: %w", err)
	}
	var members []netlink.Link
	for _, l := range links {
		if l.Attrs().MasterIndex == bridge.Attrs().Index {
			members = append(members, l)
		}
	}
	return members, nil
}

// findBridge returns nil when there is none of that name.
func findBridge(name string) (netlink.Link, error) {
	if name == "" {
		return nil, nil
	}
	link, err := netlink.LinkByName(name)
	if errors.As(err, &netlink.LinkNotFoundError{}) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("find bridge %s: %w", name, err)
	}
	return link, nil
}

// removeBridge removes the bridge and the pods' veths that are still in it.
func removeBridge(name string) error {
	bridge, err := findBridge(name)
	if err != nil || bridge == nil {
		return err
	}
	members, err := bridgePorts(bridge)
	if err != nil {
		return err
	}
	for _, link := range append(members, bridge) {
		err := netlink.LinkDel(link)
		// A veth goes by itself when its pod's network namespace goes.
		if err != nil && !errors.Is(err, unix.ENODEV) && !errors.Is(err, unix.EINVAL) {
			return fmt.Errorf("remove link %s: %w", link.Attrs().Name, err)
		}
	}
	return nil
}
