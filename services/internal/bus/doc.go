// Package bus is the client of the node's bus. It provides state as key-value entries and hints as messages.
//
// A service watches what other services write (Watch), writes the keys that it owns (Own), and sends hints (Publish,
// Subscribe). The bus may be down at any time: the client reconnects forever, a view keeps its last values, and a
// writer keeps the newest value of each key.
//
//   - A put counts as written when JetStream has acknowledged it. Until then the client repeats it.
//   - After each reconnect, every watch starts again. It subscribes before it reads the bucket, so it misses no
//     change. It uses no consumer in the server.
//   - If the delete of a key was lost, a view drops the key after its writer has put all of its keys; see
//     Writer.Complete.
//   - A watch that misses changes is detected by comparison with the bucket and is restarted.
//   - An operation that the bus denies is logged as an error and counted.
package bus
