package subject

import (
	"strings"

	"github.com/microlet/microlet/proto/role"
)

// The outbox: Kubernetes Events on their way to the apiserver.
const (
	// OutboxStream is the name of the stream.
	OutboxStream = "OUTBOX"

	// OutboxConsumer is nodestatus's durable consumer of it.
	OutboxConsumer = "deliver"

	// OutboxMaxMessages bounds what the stream holds of one service. Past it that service's oldest are dropped.
	OutboxMaxMessages = 2_000

	// OutboxMaxEntry bounds one record, in bytes. An Event's message has 1,024 characters at most.
	OutboxMaxEntry = 16 << 10

	// OutboxMaxBytes bounds the stream's size. It is more than all services' shares together, so that none can drop
	// another's.
	OutboxMaxBytes = 10 * OutboxMaxMessages * OutboxMaxEntry

	// OutboxMaxPending bounds the records that are given out and not acknowledged.
	OutboxMaxPending = 256
)

// OutboxReader is the service that delivers the outbox. The stream is in its account.
const OutboxReader = role.NodeStatus

// OutboxSubjects matches every Outbox.
//
//	outbox.*
const OutboxSubjects = "outbox.*"

// Outbox is the subject that a service's Kubernetes Events are published on.
//
//	outbox.<service>
func Outbox(r role.Role) string { return "outbox." + mustToken(string(r)) }

// LifecycleEvent is pleg's hint that a pod's containers changed.
//
//	microlet.evt.pleg.lifecycle.<podUID>
func LifecycleEvent(podUID string) string { return "microlet.evt.pleg.lifecycle." + mustToken(podUID) }

// LifecycleEvents matches every LifecycleEvent.
//
//	microlet.evt.pleg.lifecycle.*
const LifecycleEvents = "microlet.evt.pleg.lifecycle.*"

// DisconnectEvent is the bus's hint that it lost the connection of a service's replica.
//
//	microlet.evt.bus.disconnect.<service>.<replica>
func DisconnectEvent(r role.Role, replica string) string {
	return "microlet.evt.bus.disconnect." + mustToken(string(r)) + "." + mustToken(replica)
}

// DisconnectEvents matches every DisconnectEvent.
//
//	microlet.evt.bus.disconnect.*.*
const DisconnectEvents = "microlet.evt.bus.disconnect.*.*"

// DisconnectEventOf returns the replica that a DisconnectEvent is about.
func DisconnectEventOf(subj string) (r role.Role, replica string, ok bool) {
	writer, ok := strings.CutPrefix(subj, "microlet.evt.bus.disconnect.")
	if !ok {
		return "", "", false
	}
	return ParseWriter(writer)
}

// Event is a subject pattern that one service publishes and others may receive.
type Event struct {
	Pattern string
	Owner   role.Role
	Readers []role.Role
}

// Events returns the contract's hints.
func Events() []Event {
	return []Event{
		// podsync reads pleg's stream. A podsync of before that reads this subject.
		{LifecycleEvents, role.PLEG, []role.Role{role.Podsync}},
		{DisconnectEvents, role.Bus, []role.Role{role.Podsync}},
	}
}

// Outboxes returns the outbox subjects: every service may report Kubernetes Events, each on its own.
// Each is one subject that only its owner publishes; nodestatus takes them from the stream.
func Outboxes() []Event {
	var out []Event
	for _, r := range services() {
		if r == role.Bus {
			continue // the bus records no Events
		}
		out = append(out, Event{Outbox(r), r, []role.Role{OutboxReader}})
	}
	return out
}
