// Package delivery takes Kubernetes Events from the outbox to the API server.
//
// Events of one service about one object arrive in order. Events about different objects are delivered in parallel. If
// the API server rejects an Event, for example because a webhook fails, the Event is tried again for 10 minutes and
// delays no other. After a restart of nodestatus, Events that it had taken come again after 10 s.
package delivery
