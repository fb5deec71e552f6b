// Package relist turns the runtime's lists and events into hints that containers of a pod changed.
//
// The loop of the Engine relists, follows the event stream, compares, and calls a Sink. The loop never calls the
// runtime itself: workers do, each call with a deadline, so a runtime that hangs never blocks the loop. The stream
// is fast but may lose events, hang or be absent. Without it the relist runs every second, as in the kubelet. While
// the stream misses nothing, the relist slows to Options.Slowest, which still finds an exit that the stream lost.
package relist

import "sort"

// State is a container's or sandbox's state, as far as lifecycle events care.
type State int

// The states. A sandbox is Running while it is ready, and Exited otherwise.
const (
	// Absent is the state of what the runtime no longer, or not yet, lists.
	Absent State = iota
	// Created is a container that has not been started. It causes no event, as with the kubelet.
	Created
	Running
	Exited
	// Unknown is what the runtime itself calls unknown.
	Unknown
)

// Item is one container or sandbox as the runtime lists it.
type Item struct {
	State State
	// Sandbox distinguishes a sandbox from a container.
	Sandbox bool
	// Name of the container in its pod; empty for a sandbox.
	Name string
	// Attempt is the CRI attempt: of two items of one name the greater is the newer.
	Attempt uint32
}

// Snapshot is what the runtime listed: pod UID → bare container or sandbox id → item.
type Snapshot map[string]map[string]Item

// Add puts an item into the snapshot.
func (s Snapshot) Add(podUID, id string, item Item) {
	if s[podUID] == nil {
		s[podUID] = make(map[string]Item)
	}
	s[podUID][id] = item
}

// PodOf returns the UID of the pod that the id belongs to, or "" when it is not listed.
func (s Snapshot) PodOf(id string) string {
	for uid, items := range s {
		if _, ok := items[id]; ok {
			return uid
		}
	}
	return ""
}

// unfinished lists the pods in which the newest sandbox or the newest container of any name is
// not running: in these, something may have ended unobserved.
func (s Snapshot) unfinished() []string {
	var uids []string
	for uid, items := range s {
		type slot struct {
			sandbox bool
			name    string
		}
		newest := make(map[slot]Item)
		for _, item := range items {
			k := slot{item.Sandbox, item.Name}
			if old, ok := newest[k]; !ok || item.Attempt > old.Attempt {
				newest[k] = item
			}
		}
		for _, item := range newest {
			if item.State == Exited || item.State == Unknown {
				uids = append(uids, uid)
				break
			}
		}
	}
	sort.Strings(uids)
	return uids
}
