// Package fake contains test doubles for what the services talk to.
//
// Runtime is a container runtime that implements CRI v1 with sandboxes, containers, images and an event stream. It
// keeps them in memory and runs no processes. Serve serves it on a unix socket. Conn calls it without a transport,
// also in a testing/synctest bubble, where time is virtual.
//
// A container passes through the states of CRI as a real one does, only forward. A call that must fail, be slow or
// hang does so before it changes anything, and obeys its context. The state survives the server, so stopping and
// serving again simulates a runtime restart. Stats, checkpoints, and the streaming addresses of exec, attach and
// port-forward return Unimplemented.
package fake
