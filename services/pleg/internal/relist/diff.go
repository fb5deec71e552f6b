package relist

import (
	"cmp"
	"slices"
)

// EventType says what changed.
type EventType int

// The types, as the kubelet's PLEG names them.
const (
	ContainerStarted EventType = iota + 1
	ContainerDied
	ContainerRemoved
	ContainerChanged
	PodSync
)

// String returns the kubelet's name of the type.
func (t EventType) String() string {
	switch t {
	case ContainerStarted:
		return "ContainerStarted"
	case ContainerDied:
		return "ContainerDied"
	case ContainerRemoved:
		return "ContainerRemoved"
	case ContainerChanged:
		return "ContainerChanged"
	case PodSync:
		return "PodSync"
	default:
		return "Unknown"
	}
}

// Event is a hint that a pod changed.
type Event struct {
	Type   EventType
	PodUID string
	// ID of the container or sandbox, bare; empty for PodSync.
	ID string
	// Sandbox reports whether ID is a sandbox's.
	Sandbox bool
}

// Diff returns what changed from one snapshot to the next, ordered by pod and id. What went from
// running to absent died and was removed; what appeared exited has died.
func Diff(old, now Snapshot) []Event {
	var events []Event
	for uid, items := range now {
		for id, item := range items {
			events = appendEvents(events, uid, id, old[uid][id].State, item.State, item.Sandbox)
		}
	}
	for uid, items := range old {
		for id, item := range items {
			if _, still := now[uid][id]; !still {
				events = appendEvents(events, uid, id, item.State, Absent, item.Sandbox)
			}
		}
	}
	slices.SortFunc(events, func(a, b Event) int {
		return cmp.Or(cmp.Compare(a.PodUID, b.PodUID), cmp.Compare(a.ID, b.ID), cmp.Compare(a.Type, b.Type))
	})
	return events
}

func appendEvents(events []Event, uid, id string, old, now State, sandbox bool) []Event {
	if old == now {
		return events
	}
	event := func(t EventType) Event { return Event{Type: t, PodUID: uid, ID: id, Sandbox: sandbox} }
	switch now {
	case Running:
		return append(events, event(ContainerStarted))
	case Exited:
		return append(events, event(ContainerDied))
	case Created, Unknown:
		return append(events, event(ContainerChanged))
	default: // Absent
		if old != Exited && old != Created {
			events = append(events, event(ContainerDied))
		}
		return append(events, event(ContainerRemoved))
	}
}
