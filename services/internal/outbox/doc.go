// Package outbox records the Kubernetes Events of a service.
//
// A service records with a Recorder, which never blocks. The bus stores the Events in the outbox stream. From there
// nodestatus takes them to the API server, with package delivery.
//
// Events survive while the bus, nodestatus or the API server is down, within limits: a Recorder keeps 1,000 Events
// and drops the oldest, the stream keeps subject.OutboxMaxMessages, an Event that the bus has not acknowledged dies
// with its service, and a new boot empties the stream. Dropped Events are counted. An Event may be sent twice if a
// process dies; the API server then knows its name and refuses the second.
package outbox
