// Package owners judges who has the devices of a node, by what each of several sides says.
package owners

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
)

// Owners are those that one side says that devices have, by the devices' IDs.
type Owners struct{ of map[string][]string }

// Add adds an owner of devices.
func (o *Owners) Add(owner string, ids ...string) {
	if o.of == nil {
		o.of = map[string][]string{}
	}
	for _, id := range ids {
		o.of[id] = append(o.of[id], owner)
	}
}

// text is the owners of a device.
func (o *Owners) text(id string) string {
	return strings.Join(slices.Sorted(slices.Values(o.of[id])), " and ")
}

// World is all that is said about the devices of a resource.
type World struct {
	// Devices are all of its plugin.
	Devices []string
	// Seen is what the containers see, Granted what the agent's file says, and Listed what the agent answers.
	Seen, Granted, Listed Owners
}

// Problems are the devices that are unknown or have two owners, and those of which the sides say different things.
func (w *World) Problems() []string {
	ids := map[string]bool{}
	for _, side := range []*Owners{&w.Seen, &w.Granted, &w.Listed} {
		for id := range side.of {
			ids[id] = true
		}
	}
	var problems []string
	for _, id := range slices.Sorted(maps.Keys(ids)) {
		seen, granted, listed := w.Seen.text(id), w.Granted.text(id), w.Listed.text(id)
		switch {
		case !slices.Contains(w.Devices, id):
			problems = append(problems, fmt.Sprintf("the plugin has no device %q, and its owner is %q", id, seen+granted+listed))
		case len(w.Seen.of[id]) > 1:
			problems = append(problems, fmt.Sprintf("device %s has two owners: %s", id, seen))
		case seen != granted || seen != listed:
			problems = append(problems, fmt.Sprintf("device %s is seen by %q, granted to %q and listed with %q", id, seen,
				granted, listed))
		}
	}
	return problems
}

// checkpoint is what is read of the kubelet's file kubelet_internal_checkpoint.
type checkpoint struct {
	Data struct {
		PodDeviceEntries []struct {
			PodUID, ContainerName, ResourceName string
			DeviceIDs                           map[string][]string
		}
	}
}

// Granted returns the devices of a resource that a kubelet's file says that a pod was granted.
func Granted(path, uid, resource string) ([]string, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read what devices pods were granted: %w", err)
	}
	var c checkpoint
	if err := json.Unmarshal(text, &c); err != nil {
		return nil, fmt.Errorf("read what devices pods were granted: %s: %w", path, err)
	}
	var ids []string
	for _, e := range c.Data.PodDeviceEntries {
		if e.PodUID != uid || e.ResourceName != resource {
			continue
		}
		for _, near := range e.DeviceIDs {
			ids = append(ids, near...)
		}
	}
	slices.Sort(ids)
	return slices.Compact(ids), nil
}
