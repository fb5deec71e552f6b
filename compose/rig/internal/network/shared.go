package network

import (
	"fmt"
	"slices"
	"strings"
)

// Chain is a chain of the packet filter, by table and name.
type Chain struct {
	Table string `json:"table"`
	Name  string `json:"name"`
}

// shared are the chains that the portmap plugin and a node agent make for the
// whole machine, and leave when they end.
var shared = []Chain{
	{"nat", hostportDNAT},
	{"nat", "CNI-HOSTPORT-SETMARK"},
	{"nat", "CNI-HOSTPORT-MASQ"},
	{"filter", "KUBE-FIREWALL"},
	{"filter", "KUBE-KUBELET-CANARY"},
	{"nat", "KUBE-KUBELET-CANARY"},
	{"nat", "KUBE-MARK-MASQ"},
	{"nat", "KUBE-MARK-DROP"},
	{"nat", "KUBE-POSTROUTING"},
	{"mangle", "KUBE-KUBELET-CANARY"},
	{"mangle", "KUBE-IPTABLES-HINT"},
}

// SharedChains returns those of the shared chains that exist. What is there
// before the first rig starts belongs to the machine and has to stay.
func SharedChains() ([]Chain, error) {
	filter, err := openFilter()
	if err != nil {
		return nil, err
	}
	return sharedChains(filter)
}

func sharedChains(filter packetFilter) ([]Chain, error) {
	var found []Chain
	for _, table := range []string{"filter", "nat", "mangle"} {
		have, err := filter.ListChains(table)
		if err != nil {
			return nil, fmt.Errorf("list chains of %s: %w", table, err)
		}
		for _, c := range shared {
			if c.Table == table && slices.Contains(have, c.Name) {
				found = append(found, c)
			}
		}
	}
	return found, nil
}

// removeSharedChains removes the shared chains but those to keep. A chain stays while a pod has a host port in it.
func removeSharedChains(filter packetFilter, keep []Chain) error {
	found, err := sharedChains(filter)
	if err != nil {
		return err
	}
	if slices.Contains(found, Chain{"nat", hostportDNAT}) {
		lines, err := filter.List("nat", hostportDNAT)
		if err != nil {
			return fmt.Errorf("list nat %s: %w", hostportDNAT, err)
		}
		if slices.ContainsFunc(lines, func(line string) bool { return strings.HasPrefix(line, "-A ") }) {
			keep = slices.Concat(keep, shared[:3])
		}
	}
	found = slices.DeleteFunc(found, func(c Chain) bool { return slices.Contains(keep, c) })
	if len(found) == 0 {
		return nil
	}
	// What jumps to them goes first: a chain in use can't be deleted.
	for _, table := range []string{"filter", "nat", "mangle"} {
		chains, err := filter.ListChains(table)
		if err != nil {
			return fmt.Errorf("list chains of %s: %w", table, err)
		}
		for _, chain := range chains {
			if err := removeJumps(filter, table, chain, found); err != nil {
				return err
			}
		}
	}
	for _, c := range found {
		if err := filter.ClearAndDeleteChain(c.Table, c.Name); err != nil {
			return fmt.Errorf("delete chain %s of %s: %w", c.Name, c.Table, err)
		}
	}
	return nil
}

func removeJumps(filter packetFilter, table, chain string, to []Chain) error {
	lines, err := filter.List(table, chain)
	if err != nil {
		return fmt.Errorf("list %s %s: %w", table, chain, err)
	}
	for _, line := range lines {
		spec := splitRule(line)
		i := slices.Index(spec, "-j")
		if spec[0] != "-A" || i < 0 || i+1 >= len(spec) || !slices.Contains(to, Chain{table, spec[i+1]}) {
			continue
		}
		if err := filter.Delete(table, chain, spec[2:]...); err != nil {
			return fmt.Errorf("delete rule from %s %s: %w", table, chain, err)
		}
	}
	return nil
}
