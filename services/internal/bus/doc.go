// Package bus is a service's way to the node's bus: state as key-value entries, hints as messages.
//
// Its inputs are the service's role, its nkey seed and the bus's address. Its outputs are views of
// what others wrote (Watch), writers of what the service alone owns (Own), and hints (Publish,
// Subscribe).
//
// What it guarantees:
//
//   - The bus may be away at any time and for any time. The client reconnects for ever; a view keeps
//     its last values meanwhile, and a writer remembers the newest value of each key.
//   - A put counts as written only when JetStream has acknowledged it, and is repeated until then.
//   - After each reconnect every watch starts anew: it subscribes first and reads the whole bucket
//     second, so no change falls between. It needs no consumer at the server, hence nothing of it can
//     be lost, deleted or left behind there.
//   - A key whose delete was lost is dropped once its writer has said what it holds: see Writer.Complete.
//   - A watch that hears nothing while its bucket changes is found by comparison with the bucket, and
//     restarted.
//   - What the bus's permissions deny is an error in the log and counted, never silence.
package bus
