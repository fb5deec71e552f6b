package network

import (
	"fmt"
	"slices"
	"strings"

	"github.com/coreos/go-iptables/iptables"
)

// packetFilter is what the rig needs of iptables.
type packetFilter interface {
	Exists(table, chain string, rule ...string) (bool, error)
	Insert(table, chain string, pos int, rule ...string) error
	Delete(table, chain string, rule ...string) error
	List(table, chain string) ([]string, error)
	ListChains(table string) ([]string, error)
	ClearAndDeleteChain(table, chain string) error
}

var _ packetFilter = (*iptables.IPTables)(nil)

func openFilter() (packetFilter, error) {
	ipt, err := iptables.New(iptables.IPFamily(iptables.ProtocolIPv4), iptables.Timeout(5))
	if err != nil {
		return nil, fmt.Errorf("open iptables (install the package iptables): %w", err)
	}
	return ipt, nil
}

type rule struct {
	table, chain string
	spec         []string
}

func comment(name string) string { return "microlet-rig:" + name }

// rules are all rules of an instance. Accepting ones are put first in their
// chain, so that they hold where a later rule or the policy drops.
func rules(plan Plan, name string) []rule {
	mark := []string{"-m", "comment", "--comment", comment(name)}
	api := plan.APIService.String() + "/32"
	toAPI := []string{"-d", api, "-p", "tcp", "-m", "tcp", "--dport", "443"}
	dnat := []string{"-j", "DNAT", "--to-destination", fmt.Sprintf("%s:%d", plan.Server.Addr(), APIPort)}
	return []rule{
		{"filter", "FORWARD", slices.Concat([]string{"-i", plan.Bridge}, mark, []string{"-j", "ACCEPT"})},
		{"filter", "FORWARD", slices.Concat([]string{"-o", plan.Bridge}, mark, []string{"-j", "ACCEPT"})},
		{"filter", "INPUT", slices.Concat([]string{"-i", plan.Bridge}, mark, []string{"-j", "ACCEPT"})},
		{"nat", "POSTROUTING", slices.Concat([]string{"-s", plan.PodCIDR.String(), "!", "-o", plan.Bridge}, mark,
			[]string{"-j", "MASQUERADE"})},
		// The rig has no kube-proxy: this is the one Service that every pod
		// with a service account token learns of.
		{"nat", "PREROUTING", slices.Concat(toAPI, mark, dnat)},
		{"nat", "OUTPUT", slices.Concat(toAPI, mark, dnat)},
	}
}

// APIPort is the API server's port on the address Plan.Server.
const APIPort = 6443

func addRules(plan Plan, name string) error {
	filter, err := openFilter()
	if err != nil {
		return err
	}
	return addRulesTo(filter, plan, name)
}

func addRulesTo(filter packetFilter, plan Plan, name string) error {
	for _, r := range rules(plan, name) {
		exists, err := filter.Exists(r.table, r.chain, r.spec...)
		if err != nil {
			return fmt.Errorf("look for rule in %s %s: %w", r.table, r.chain, err)
		}
		if exists {
			continue
		}
		if err := filter.Insert(r.table, r.chain, 1, r.spec...); err != nil {
			return fmt.Errorf("insert rule into %s %s: %w", r.table, r.chain, err)
		}
	}
	return nil
}

// hostportDNAT is the portmap plugin's chain for all pods of the machine. A
// pod's own chain is CNI-DN-<hash>, and its rules name the CNI network.
const hostportDNAT = "CNI-HOSTPORT-DNAT"

// findRules returns the rules of the instance that are there, as iptables
// lists them, and the chains that belong to its pods.
func findRules(filter packetFilter, plan Plan, name string) (found []rule, chains []string, err error) {
	for table, parents := range map[string][]string{
		"filter": {"FORWARD", "INPUT"},
		"nat":    {"PREROUTING", "OUTPUT", "POSTROUTING", hostportDNAT},
	} {
		have, err := filter.ListChains(table)
		if err != nil {
			return nil, nil, fmt.Errorf("list chains of %s: %w", table, err)
		}
		for _, chain := range parents {
			if !slices.Contains(have, chain) {
				continue
			}
			lines, err := filter.List(table, chain)
			if err != nil {
				return nil, nil, fmt.Errorf("list %s %s: %w", table, chain, err)
			}
			for _, line := range lines {
				spec := splitRule(line)
				if len(spec) < 2 || spec[0] != "-A" {
					continue
				}
				if !ours(spec, plan, name) {
					continue
				}
				found = append(found, rule{table, chain, spec[2:]})
				if i := slices.Index(spec, "-j"); i > 0 && i+1 < len(spec) && strings.HasPrefix(spec[i+1], "CNI-DN-") {
					chains = append(chains, spec[i+1])
				}
			}
		}
	}
	slices.Sort(chains)
	return found, slices.Compact(chains), nil
}

// ours reports whether the rule carries the instance's comment, or is the
// portmap plugin's for a pod of the instance's network.
func ours(spec []string, plan Plan, name string) bool {
	i := slices.Index(spec, "--comment")
	if i < 0 || i+1 >= len(spec) {
		return false
	}
	text := spec[i+1]
	return text == comment(name) ||
		plan.Bridge != "" && strings.HasPrefix(text, fmt.Sprintf("dnat name: %q ", plan.Bridge))
}

// splitRule splits a rule as iptables -S prints it: words, where a word with
// spaces is in double quotes and a quote in it has a backslash.
func splitRule(line string) []string {
	var words []string
	var word strings.Builder
	quoted, started := false, false
	for i := 0; i < len(line); i++ {
		c := line[i]
		switch {
		case c == '\\' && quoted && i+1 < len(line):
			i++
			word.WriteByte(line[i])
		case c == '"':
			quoted, started = !quoted, true
		case c == ' ' && !quoted:
			if started {
				words = append(words, word.String())
				word.Reset()
				started = false
			}
		default:
			word.WriteByte(c)
			started = true
		}
	}
	if started {
		words = append(words, word.String())
	}
	return words
}

func removeRules(filter packetFilter, plan Plan, name string) error {
	found, chains, err := findRules(filter, plan, name)
	if err != nil {
		return err
	}
	for _, r := range found {
		if err := filter.Delete(r.table, r.chain, r.spec...); err != nil {
			return fmt.Errorf("delete rule from %s %s: %w", r.table, r.chain, err)
		}
	}
	for _, chain := range chains {
		if err := filter.ClearAndDeleteChain("nat", chain); err != nil {
			return fmt.Errorf("delete chain %s: %w", chain, err)
		}
	}
	return nil
}
