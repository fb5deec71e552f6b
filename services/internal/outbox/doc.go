// Package outbox carries Kubernetes Events from the service that records them to the apiserver.
//
// Its input is what a service gives to a Recorder, its output what Delivery creates at the apiserver.
// Between them is the bus's outbox stream.
//
// What it guarantees: recording never blocks. An Event that was recorded survives the absence of bus,
// nodestatus and apiserver, and is delivered in the order in which its service recorded it, up to these
// bounds: a recorder keeps 1,000 Events while the bus is away and drops the oldest; the stream keeps
// what subject.OutboxMaxMessages says; a service that dies takes with it what the bus has not
// acknowledged; a new boot empties the stream. What is dropped is counted. An Event may be delivered
// twice when a process dies between the apiserver's answer and the acknowledgement: the apiserver knows
// its name by then, and refuses the second.
package outbox
