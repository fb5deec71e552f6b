package network

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
)

// cacheDir is where libcni keeps the results of its plugins for a later DEL.
// containerd offers no setting for it.
const cacheDir = "/var/lib/cni/results"

// Removal says what to take away.
type Removal struct {
	Plan Plan
	Name string
	// Last says that no other instance is left, so that what instances share
	// may go too, but for the chains to keep.
	Last bool
	Keep []Chain
}

// Remove removes the instance's rules, bridge and CNI results. Its pods must
// have ended.
func Remove(r Removal) error {
	var problems []error
	if filter, err := openFilter(); err != nil {
		problems = append(problems, err)
	} else {
		problems = append(problems, removeRules(filter, r.Plan, r.Name))
		if r.Last {
			problems = append(problems, removeSharedChains(filter, r.Keep))
		}
	}
	problems = append(problems, removeBridge(r.Plan.Bridge), removeResults(r.Plan.Bridge))
	if r.Last {
		// Only if they are empty: others may have results there.
		for dir := cacheDir; dir != "/var/lib"; dir = filepath.Dir(dir) {
			_ = os.Remove(dir)
		}
	}
	return errors.Join(problems...)
}

// Leftovers lists what Remove would remove.
func Leftovers(r Removal) ([]string, error) {
	var left []string
	filter, err := openFilter()
	if err != nil {
		return nil, err
	}
	found, chains, err := findRules(filter, r.Plan, r.Name)
	if err != nil {
		return nil, err
	}
	for _, rule := range found {
		left = append(left,
			fmt.Sprintf("iptables rule: -t %s -A %s %s", rule.table, rule.chain, strings.Join(rule.spec, " ")))
	}
	for _, chain := range chains {
		left = append(left, "iptables chain: "+chain)
	}
	if r.Last {
		shared, err := sharedChains(filter)
		if err != nil {
			return nil, err
		}
		for _, c := range shared {
			if !slices.Contains(r.Keep, c) {
				left = append(left, fmt.Sprintf("iptables chain: -t %s %s", c.Table, c.Name))
			}
		}
	}
	bridge, err := findBridge(r.Plan.Bridge)
	if err != nil {
		return nil, err
	}
	if bridge != nil {
		left = append(left, "bridge: "+r.Plan.Bridge)
		members, err := bridgePorts(bridge)
		if err != nil {
			return nil, err
		}
		for _, m := range members {
			left = append(left, "link: "+m.Attrs().Name)
		}
	}
	results, err := cniResults(cacheDir, r.Plan.Bridge)
	if err != nil {
		return nil, err
	}
	for _, file := range results {
		left = append(left, "CNI result: "+file)
	}
	return left, nil
}

// Found is what the machine itself shows about instances.
type Found struct {
	Names   []string        // of those that have a rule or a bridge
	Plans   map[string]Plan // of those that have a bridge, by name
	Orphans []Plan          // bridges that do not name their instance
}

// Discover looks for rules and bridges of instances, whatever is recorded.
func Discover() (Found, error) {
	found := Found{Plans: map[string]Plan{}}
	filter, err := openFilter()
	if err != nil {
		return found, err
	}
	for _, at := range []Chain{{"filter", "FORWARD"}, {"filter", "INPUT"}, {"nat", "PREROUTING"}, {"nat", "OUTPUT"},
		{"nat", "POSTROUTING"}} {
		lines, err := filter.List(at.Table, at.Name)
		if err != nil {
			return found, fmt.Errorf("list %s %s: %w", at.Table, at.Name, err)
		}
		for _, line := range lines {
			for _, word := range splitRule(line) {
				if name, ok := strings.CutPrefix(word, comment("")); ok {
					found.Names = append(found.Names, name)
				}
			}
		}
	}
	links, err := netlink.LinkList()
	if err != nil {
		return found, fmt.Errorf("list links: %w", err)
	}
	for index := range MaxIndex + 1 {
		plan, err := For(index)
		if err != nil {
			return found, err
		}
		i := slices.IndexFunc(links,
			func(l netlink.Link) bool { return l.Attrs().Name == plan.Bridge && l.Type() == "bridge" })
		if i < 0 {
			continue
		}
		if name, ok := strings.CutPrefix(links[i].Attrs().Alias, comment("")); ok {
			found.Names = append(found.Names, name)
			found.Plans[name] = plan
		} else {
			found.Orphans = append(found.Orphans, plan)
		}
	}
	slices.Sort(found.Names)
	found.Names = slices.Compact(found.Names)
	return found, nil
}

func removeResults(network string) error {
	results, err := cniResults(cacheDir, network)
	problems := []error{err}
	for _, file := range results {
		if err := os.Remove(file); err != nil && !errors.Is(err, fs.ErrNotExist) {
			problems = append(problems, fmt.Errorf("remove CNI result: %w", err))
		}
	}
	return errors.Join(problems...)
}

// cniResults returns the files in dir that hold a result of the network.
func cniResults(dir, network string) ([]string, error) {
	if network == "" {
		return nil, nil
	}
	files, err := filepath.Glob(filepath.Join(dir, network+"-*"))
	if err != nil {
		return nil, fmt.Errorf("list CNI results: %w", err)
	}
	var found []string
	for _, file := range files {
		text, err := os.ReadFile(file)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("read CNI result: %w", err)
		}
		var result struct {
			Network string `json:"networkName"`
		}
		// A file that was cut off by a kill belongs to the network that its
		// name says.
		if err := json.Unmarshal(text, &result); err == nil && result.Network != network {
			continue
		}
		found = append(found, file)
	}
	return found, nil
}
