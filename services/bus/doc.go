// Package bus is the node's bus: a NATS server with JetStream, on loopback, for this node's services only.
//
// Its inputs are the contract in proto/subject and the services' public nkeys. Its outputs are the
// buckets, the outbox, and what travels over them.
//
// What it guarantees:
//
//   - It listens on a loopback address or not at all, and takes only who signs in with the nkey of a role.
//   - A role may publish and hear what the contract grants it, and nothing else. No role may create,
//     alter, purge or delete a stream or a consumer: the bus makes them at its start, from the contract,
//     with an identity that lives in its own memory.
//   - What it has acknowledged is there again after a SIGKILL. At a new boot its store is emptied: what
//     it held was about containers that are gone.
//
// One thing it does not keep apart: an answer of JetStream goes to whatever subject the asking service
// names, also to a key's subject. Readers therefore check that an entry is signed by its key's owner; a
// service that was taken over could forge that, as it could misuse its own keys.
package bus
