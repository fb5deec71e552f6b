package rig

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
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
	all, indices, err := discover()
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
		i, err := salvage(name, out)
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
		// Bridges of which no record tells whose they are.
		for _, index := range indices {
			plan, err := network.For(index)
			if err != nil {
				return cleaned, err
			}
			problems = append(problems, network.Remove(network.Removal{Plan: plan}))
		}
	}
	return cleaned, errors.Join(problems...)
}

// Discover returns the names of all instances that left anything on the
// machine.
func Discover() ([]string, error) {
	names, _, err := discover()
	return names, err
}

func discover() (names []string, indices []int, err error) {
	if names, err = recorded(); err != nil {
		return nil, nil, err
	}
	tree, err := cgroup.Detect()
	if err != nil {
		return nil, nil, err
	}
	names = append(names, tree.Children(cgroupHome)...)
	for _, dir := range []string{home, runHome} {
		entries, err := os.ReadDir(dir)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, nil, fmt.Errorf("look for instances: %w", err)
		}
		for _, e := range entries {
			if e.IsDir() {
				names = append(names, e.Name())
			}
		}
	}
	// A machine without iptables has run no rig.
	if ruled, bridges, err := network.Discover(); err == nil {
		names, indices = append(names, ruled...), bridges
	}
	names = slices.DeleteFunc(names, func(name string) bool { return checkName(name) != nil })
	slices.Sort(names)
	return slices.Compact(names), indices, nil
}

// salvage returns an instance as well as it is known: without a record it has
// the default folder, and no plan of its network.
func salvage(name string, out io.Writer) (*Instance, error) {
	r, err := loadRecord(name)
	if err != nil {
		r = record{Name: name, Dir: filepath.Join(home, name)}
		// Nothing tells which of the chains that a kubelet makes were there
		// before, so all of them stay.
		if r.Keep, err = network.SharedChains(); err != nil {
			return nil, err
		}
	}
	return attach(r, out)
}
