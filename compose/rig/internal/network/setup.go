package network

import (
	"errors"
	"fmt"
	"net"
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

// Setup makes the bridge with the node's address, and the instance's rules.
func Setup(plan Plan, name string) error {
	if err := makeBridge(plan, name); err != nil {
		return err
	}
	return addRules(plan, name)
}

// makeBridge makes the bridge as the CNI plugin of that name would: the plugin
// then uses it as it is. The node's address has to be there before the first
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
	// The alias tells whose it is when the record is lost.
	if err := netlink.LinkSetAlias(link, comment(name)); err != nil {
		return fmt.Errorf("give bridge %s its alias: %w", plan.Bridge, err)
	}
	addr := &netlink.Addr{IPNet: &net.IPNet{IP: plan.NodeIP.AsSlice(), Mask: net.CIDRMask(plan.PodCIDR.Bits(), 32)}}
	if err := netlink.AddrReplace(link, addr); err != nil {
		return fmt.Errorf("give bridge %s the address %s: %w", plan.Bridge, plan.NodeIP, err)
	}
	if err := netlink.LinkSetUp(link); err != nil {
		return fmt.Errorf("set bridge %s up: %w", plan.Bridge, err)
	}
	return nil
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
