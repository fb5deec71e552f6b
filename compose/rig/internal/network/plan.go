package network

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// MaxIndex is the highest index of an instance: more /22 networks do not fit
// into the rig's range.
const MaxIndex = 63

// Plan is the network of one instance.
type Plan struct {
	Index   int          `json:"index"`
	Bridge  string       `json:"bridge"`  // also the CNI network's name
	PodCIDR netip.Prefix `json:"podCIDR"` // 1,021 pods
	Gateway netip.Addr   `json:"gateway"` // the pods' gateway
	NodeIP  netip.Addr   `json:"nodeIP"`  // the node's address
	Server  netip.Prefix `json:"server"`  // the bridge's own address, where the API server listens
	// the link of the node's machine, in the bridge; "": the node is this machine
	Tap        string       `json:"tap"`
	Services   netip.Prefix `json:"services"`   // cluster IPs
	APIService netip.Addr   `json:"apiService"` // the cluster IP of the Service kubernetes
	DNSService netip.Addr   `json:"dnsService"` // where pods look for DNS
}

// For returns the plan of the instance with that index: pods in
// 10.210.0.0/16, services in 10.211.0.0/16. The node is this machine: its
// address is the bridge's, and all pods are in the bridge.
func For(index int) (Plan, error) {
	if index < 0 || index > MaxIndex {
		return Plan{}, fmt.Errorf("network index %d: it must be from 0 to %d", index, MaxIndex)
	}
	i := byte(index)
	return Plan{
		Index:      index,
		Bridge:     "mlrig" + strconv.Itoa(index),
		PodCIDR:    netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 210, i * 4, 0}), 22),
		Gateway:    netip.AddrFrom4([4]byte{10, 210, i * 4, 1}),
		NodeIP:     netip.AddrFrom4([4]byte{10, 210, i * 4, 1}),
		Server:     netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 210, i * 4, 1}), 22),
		Services:   netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 211, i, 0}), 24),
		APIService: netip.AddrFrom4([4]byte{10, 211, i, 1}),
		DNSService: netip.AddrFrom4([4]byte{10, 211, i, 10}),
	}, nil
}

// OnMachine returns the plan for a node on a machine of its own: the bridge is a
// network of 10.212.0.0/16 between both machines, and pods are routed.
func (p Plan) OnMachine() Plan {
	i := byte(p.Index)
	p.Server = netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 212, i, 1}), 24)
	p.NodeIP = netip.AddrFrom4([4]byte{10, 212, i, 2})
	p.Tap = p.Bridge + "t"
	return p
}

// Choose returns the plan with the lowest index that no other instance has, and with networks that no route of the
// machine touches.
func Choose(taken map[int]bool) (Plan, error) {
	routes, err := netlink.RouteList(nil, netlink.FAMILY_V4)
	if err != nil {
		return Plan{}, fmt.Errorf("list routes: %w", err)
	}
	var used []netip.Prefix
	for _, r := range routes {
		if r.Dst == nil {
			continue // the default route
		}
		addr, ok := netip.AddrFromSlice(r.Dst.IP.To4())
		bits, _ := r.Dst.Mask.Size()
		if ok && bits > 0 {
			used = append(used, netip.PrefixFrom(addr, bits))
		}
	}
	return choose(taken, used)
}

func choose(taken map[int]bool, used []netip.Prefix) (Plan, error) {
next:
	for index := range MaxIndex + 1 {
		if taken[index] {
			continue
		}
		plan, err := For(index)
		if err != nil {
			return Plan{}, err
		}
		for _, u := range used {
			if u.Overlaps(plan.PodCIDR) || u.Overlaps(plan.Services) || u.Overlaps(plan.OnMachine().Server) {
				continue next
			}
		}
		return plan, nil
	}
	return Plan{},
		fmt.Errorf("no free network: all %d are used by other rigs or by routes of this machine: run rig clean",
			MaxIndex+1)
}

// Ports of an instance are on the loopback address, below the range from
// which the kernel takes ports for outgoing connections.
const (
	firstPort = 20000
	perIndex  = 50
)

// Ports picks count free TCP ports on 127.0.0.1 from the instance's own range.
// Nothing reserves them, so the caller must bind them soon.
func Ports(index, count int) ([]int, error) {
	return ports(index, count, func(port int) error {
		l, err := net.Listen("tcp4", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
		if err != nil {
			return err
		}
		return l.Close()
	})
}

func ports(index, count int, try func(port int) error) ([]int, error) {
	picked := make([]int, 0, count)
	for port := firstPort + index*perIndex; port < firstPort+(index+1)*perIndex && len(picked) < count; port++ {
		err := try(port)
		if errors.Is(err, unix.EADDRINUSE) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("try port %d: %w", port, err)
		}
		picked = append(picked, port)
	}
	if len(picked) < count {
		return nil, fmt.Errorf("only %d of %d ports from %d to %d are free", len(picked), count,
			firstPort+index*perIndex, firstPort+(index+1)*perIndex-1)
	}
	return picked, nil
}
