// Package outbox carries Kubernetes Events from the service that records them to the API server.
//
// A service records with a Recorder, which never blocks. The bus stores the Events in the outbox stream. Delivery
// creates them in the API. Events of one service about one object arrive in order. Events about different objects
// are delivered in parallel. If the API server rejects an Event, for example because a webhook fails, the Event is
// tried again for 10 minutes and delays no other. After a restart of nodestatus, Events that it had taken come again
// after 10 s.
//
// Events survive while the bus, nodestatus or the API server is down, within limits: a Recorder keeps 1,000 Events
// and drops the oldest, the stream keeps subject.OutboxMaxMessages, an Event that the bus has not acknowledged dies
// with its service, and a new boot empties the stream. Dropped Events are counted. An Event may be sent twice if a
// process dies; the API server then knows its name and refuses the second.
package outbox
