// Package outbox carries Kubernetes Events from the service that records them to the apiserver.
//
// Its input is what a service gives to a Recorder, its output what Delivery creates at the apiserver.
// Between them is the bus's outbox stream.
//
// What it guarantees: recording never blocks. Events about one object are delivered in the order in which their
// service recorded them, those about different objects side by side. An Event that the apiserver does not
// take, as when a webhook fails, holds up no other: it waits aside, is tried for 10 minutes, and comes after its
// successors then. After nodestatus has died, what it had taken comes again after 10 s, and newer Events may come first.
//
// An Event that was recorded survives the absence of bus, nodestatus and apiserver, up to these bounds: a
// recorder keeps 1,000 Events while the bus is away and drops the oldest; the stream keeps what
// subject.OutboxMaxMessages says; a service that dies takes with it what the bus has not acknowledged; a new
// boot empties the stream. What is dropped is counted. An Event may be delivered twice when a process dies
// between the apiserver's answer and the acknowledgement: the apiserver knows its name by then, and refuses
// the second.
package outbox
