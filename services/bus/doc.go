// Package bus is the node's bus: a NATS server with JetStream, on a unix socket, for this node's services only.
//
// Its inputs are the contract in proto/subject and the services' public nkeys. Its outputs are the
// buckets, the outbox, and what travels over them.
//
// What it guarantees:
//
//   - It takes only who the kernel says is one of the node's services, and who then signs in with the nkey of a role.
//     It listens to no network. A loopback port for looking at it (View) is off by default, and who signs in there
//     reads and cannot write.
//   - Each role has an account of its own, in which its keys are. What a role may publish and hear is what the contract
//     grants it, and whatever reply subject, stream or consumer a service makes up stays within its account. No role
//     may create, alter, purge or delete a stream or a consumer by request: the bus makes them at its start, from the
//     contract, with identities that live in its own memory.
//   - A role that fills its part of a bucket, its share of the outbox or its number of connections takes nothing from
//     another.
//   - What it has acknowledged is there again after a SIGKILL. At a new boot its store is emptied: what
//     it held was about containers that are gone.
package bus
