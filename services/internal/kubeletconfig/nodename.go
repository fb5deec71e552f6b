package kubeletconfig

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"

	utilnet "k8s.io/utils/net"
)

// What follows is k8s.io/component-helpers/node/util in what it accepts. That package brings every client of the API
// along, which most services have no other use for.

// nodeName is the name of --hostname-override, or this host's.
func nodeName(override string) (string, error) {
	name := override
	if name == "" {
		host, err := os.Hostname()
		if err != nil {
			return "", fmt.Errorf("find out this host's name: %w", err)
		}
		name = host
	}
	if name = strings.TrimSpace(name); name == "" {
		return "", errors.New("this host's name is empty")
	}
	return strings.ToLower(name), nil
}

// parseNodeIPs reads --node-ip: one address, or one of each family. It returns what is no address, too.
func parseNodeIPs(given string) (ips []netip.Addr, unreadable []string, err error) {
	if given == "" {
		return nil, nil, nil
	}
	for text := range strings.SplitSeq(given, ",") {
		text = strings.TrimSpace(text)
		ip, ok := netip.AddrFromSlice(utilnet.ParseIPSloppy(text))
		if !ok {
			unreadable = append(unreadable, text)
			continue
		}
		ips = append(ips, ip.Unmap())
	}
	switch {
	case len(ips) < 2:
		return ips, unreadable, nil
	case len(ips) > 2 || ips[0].Is6() == ips[1].Is6():
		return nil, unreadable, errors.New("must contain either a single IP or a dual-stack pair of IPs")
	case ips[0].IsUnspecified() || ips[1].IsUnspecified():
		return nil, unreadable, errors.New("dual-stack node IP cannot include '0.0.0.0' or '::'")
	}
	return ips, unreadable, nil
}
