// Package bus runs the bus of the node: a NATS server with JetStream on a unix socket.
//
// It creates the buckets and the outbox from the contract in proto/subject. Only services of this node can sign in:
// the kernel identifies the process, and the service proves its role with its nkey.
//
// Each role has its own account, so a service can read and write only what the contract grants it, and can fill only
// its own part. No role can create, change, purge or delete a stream or a consumer. Acknowledged data survives a
// SIGKILL. A new boot empties the store, because its data describes containers that no longer exist. The loopback
// port for inspecting the bus (View) is off by default and read-only.
package bus
