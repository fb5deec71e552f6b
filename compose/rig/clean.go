package rig

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"

	"github.com/microlet/microlet/compose/rig/internal/cgroup"
	"github.com/microlet/microlet/compose/rig/internal/network"
)

// Clean takes away instances, running or crashed, with or without a record:
// the named ones, or all that the machine has. It returns the names of those
// that it took away.
func Clean(ctx context.Context, out io.Writer, names ...string) ([]string, error) {
	if os.Geteuid() != 0 {
		return nil, errors.New("clean needs root, as up does")
	}
	for _, name := range names {
		if err := checkName(name); err != nil {
			return nil, err
		}
	}
	all, found, err := discover()
	if err != nil {
		return nil, err
	}
	everything := len(names) == 0
	if everything {
		names = all
	}
	var cleaned []string
	var problems []error
	for _, name := range names {
		if !slices.Contains(all, name) {
			continue
		}
		i, err := salvage(name, found, out)
		if err != nil {
			problems = append(problems, err)
			continue
		}
		if err := i.Down(ctx, Fast); err != nil {
			problems = append(problems, err)
			continue
		}
		cleaned = append(cleaned, name)
	}
	if everything {
		for _, plan := range found.Orphans {
			problems = append(problems, network.Remove(network.Removal{Plan: plan}))
		}
	}
	return cleaned, errors.Join(problems...)
}

func discover() ([]string, network.Found, error) {
	var none network.Found
	names, err := recorded()
	if err != nil {
		return nil, none, err
	}
	tree, err := cgroup.Detect()
	if err != nil {
		return nil, none, err
	}
	names = append(names, tree.Children(cgroupHome)...)
	for _, dir := range []string{home, runHome} {
		entries, err := os.ReadDir(dir)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, none, fmt.Errorf("look for instances: %w", err)
		}
		for _, e := range entries {
			if e.IsDir() {
				names = append(names, e.Name())
			}
		}
	}
	found := none
	if _, err := exec.LookPath("iptables"); err == nil { // else no rig has run here
		if found, err = network.Discover(); err != nil {
			return nil, none, err
		}
	}
	names = append(names, found.Names...)
	names = slices.DeleteFunc(names, func(name string) bool { return checkName(name) != nil })
	slices.Sort(names)
	return slices.Compact(names), found, nil
}

// salvage returns an instance as well as it is known: without a record it has
// the default folder and the network of its bridge.
func salvage(name string, found network.Found, out io.Writer) (*Instance, error) {
	r, err := loadRecord(name)
	if err != nil {
		r = record{Name: name, Dir: filepath.Join(home, name), Network: found.Plans[name]}
		// Nothing shows which of the chains that a kubelet makes were there
		// before, so all of them stay.
		if r.Keep, err = network.SharedChains(); err != nil {
			return nil, err
		}
	}
	i, err := attach(r, out)
	if err != nil {
		return nil, fmt.Errorf("clean instance %s: %w", name, err)
	}
	return i, nil
}
