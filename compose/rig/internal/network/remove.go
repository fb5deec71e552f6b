package network

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// cacheDir is where libcni keeps the results of its plugins for a later DEL.
// containerd offers no setting for it.
const cacheDir = "/var/lib/cni/results"

// Remove removes the instance's rules, bridge and CNI results. Its pods must
// have ended. last says that no other instance is left, so that the chains
// that the portmap plugin shares between them may go too, if nobody uses them.
func Remove(plan Plan, name string, last bool) error {
	var problems []error
	if filter, err := openFilter(); err != nil {
		problems = append(problems, err)
	} else {
		problems = append(problems, removeRules(filter, plan, name))
		if last {
			problems = append(problems, removeSharedChains(filter))
		}
	}
	problems = append(problems, removeBridge(plan.Bridge))
	results, err := cniResults(cacheDir, plan.Bridge)
	problems = append(problems, err)
	for _, file := range results {
		if err := os.Remove(file); err != nil && !errors.Is(err, fs.ErrNotExist) {
			problems = append(problems, fmt.Errorf("remove CNI result: %w", err))
		}
	}
	if last {
		// Only if they are empty: others may have results there.
		for dir := cacheDir; dir != "/var/lib"; dir = filepath.Dir(dir) {
			_ = os.Remove(dir)
		}
	}
	return errors.Join(problems...)
}

// Leftovers lists what Remove would remove.
func Leftovers(plan Plan, name string) ([]string, error) {
	var left []string
	filter, err := openFilter()
	if err != nil {
		return nil, err
	}
	found, chains, err := findRules(filter, plan, name)
	if err != nil {
		return nil, err
	}
	for _, r := range found {
		left = append(left, fmt.Sprintf("iptables rule: -t %s -A %s %s", r.table, r.chain, strings.Join(r.spec, " ")))
	}
	for _, chain := range chains {
		left = append(left, "iptables chain: "+chain)
	}
	bridge, err := findBridge(plan.Bridge)
	if err != nil {
		return nil, err
	}
	if bridge != nil {
		left = append(left, "bridge: "+plan.Bridge)
		members, err := bridgePorts(bridge)
		if err != nil {
			return nil, err
		}
		for _, m := range members {
			left = append(left, "link: "+m.Attrs().Name)
		}
	}
	results, err := cniResults(cacheDir, plan.Bridge)
	if err != nil {
		return nil, err
	}
	for _, file := range results {
		left = append(left, "CNI result: "+file)
	}
	return left, nil
}

// cniResults returns the files in dir that hold a result of the network.
func cniResults(dir, network string) ([]string, error) {
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
