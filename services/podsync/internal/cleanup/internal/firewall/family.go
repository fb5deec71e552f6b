package firewall

import (
	"context"
	"fmt"

	"github.com/coreos/go-iptables/iptables"
)

// The kubelet's chains, and the tables that they are in.
const (
	hintChain     = "KUBE-IPTABLES-HINT"
	firewallChain = "KUBE-FIREWALL"
	// canaryChain is in every table, empty: where it is gone, another program has flushed the table.
	canaryChain = "KUBE-KUBELET-CANARY"

	mangle = "mangle"
	nat    = "nat"
	filter = "filter"
)

// A chain is one of a table.
type chain struct{ table, name string }

// A rule belongs into a chain, before or behind those that are there.
type rule struct {
	chain
	first bool
	spec  []string
}

// dropRule is, to the letter, the one that kube-proxy makes too.
var dropRule = rule{chain{filter, firewallChain}, false, []string{
	"-m", "comment", "--comment", "block incoming localnet connections",
	"--dst", "127.0.0.0/8", "!", "--src", "127.0.0.0/8",
	"-m", "conntrack", "!", "--ctstate", "RELATED,ESTABLISHED,DNAT", "-j", "DROP",
}}

var firewallRules = []rule{
	{chain{filter, "OUTPUT"}, true, []string{"-j", firewallChain}},
	{chain{filter, "INPUT"}, true, []string{"-j", firewallChain}},
	dropRule,
}

// family is the packet filter of one IP family.
type family struct {
	name, program string
	protocol      iptables.Protocol
	// lacks says what the node goes without while the chains are not in place.
	lacks string

	tables Tables
	// placed: the chains were in place once, so that another program has removed what is missing.
	placed bool
	// problem is why the last look failed; "" if it did not.
	problem string
}

// ensure puts in place what is missing; changed reports whether anything was. wait is called before chains are put
// back that were in place before.
func (f *family) ensure(ctx context.Context, open func(iptables.Protocol) (Tables, error),
	wait func() error) (changed bool, err error) {
	if f.tables == nil {
		tables, err := open(f.protocol)
		if err != nil {
			return false, err
		}
		f.tables = tables
	}
	if f.placed {
		complete, err := f.complete(ctx)
		if complete || err != nil {
			return false, err
		}
		if err := wait(); err != nil {
			return false, err
		}
	}
	if err := f.place(ctx); err != nil {
		return false, err
	}
	f.placed = true
	return true, nil
}

// complete looks whether the chains are in place. Of the canaries it asks for the one of the table that has the
// fewest rules, as the kubelet does: with thousands of services each look at nat is slow.
func (f *family) complete(ctx context.Context) (bool, error) {
	chains, rules := []chain{{mangle, canaryChain}, {mangle, hintChain}}, []rule(nil)
	if f.protocol == iptables.ProtocolIPv4 {
		chains, rules = append(chains, dropRule.chain), firewallRules
	}
	for _, c := range chains {
		if there, err := f.hasChain(ctx, c); err != nil || !there {
			return false, err
		}
	}
	for _, r := range rules {
		if there, err := f.hasRule(ctx, r); err != nil || !there {
			return false, err
		}
	}
	return true, nil
}

// place makes what is missing. IPv6 has no addresses of loopback that are routed, and needs the hint alone.
func (f *family) place(ctx context.Context) error {
	chains, rules := []chain{{mangle, hintChain}}, []rule(nil)
	if f.protocol == iptables.ProtocolIPv4 {
		chains, rules = append(chains, dropRule.chain), firewallRules
	}
	chains = append(chains, chain{mangle, canaryChain}, chain{nat, canaryChain}, chain{filter, canaryChain})
	for _, c := range chains {
		there, err := f.hasChain(ctx, c)
		if err == nil && !there {
			err = f.tables.NewChain(c.table, c.name)
		}
		if err != nil {
			return fmt.Errorf("chain %s of table %s: %w", c.name, c.table, err)
		}
	}
	for _, r := range rules {
		there, err := f.hasRule(ctx, r)
		switch {
		case err != nil || there:
		case r.first:
			err = f.tables.Insert(r.table, r.name, 1, r.spec...)
		default:
			err = f.tables.Append(r.table, r.name, r.spec...)
		}
		if err != nil {
			return fmt.Errorf("rule of chain %s of table %s: %w", r.name, r.table, err)
		}
	}
	return nil
}

func (f *family) hasChain(ctx context.Context, c chain) (bool, error) {
	if err := context.Cause(ctx); err != nil { // each call may wait for the lock
		return false, err
	}
	return f.tables.ChainExists(c.table, c.name)
}

func (f *family) hasRule(ctx context.Context, r rule) (bool, error) {
	if err := context.Cause(ctx); err != nil {
		return false, err
	}
	return f.tables.Exists(r.table, r.name, r.spec...)
}
