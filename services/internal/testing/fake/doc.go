// Package fake holds stand-ins with behaviour for what the services talk to. They are
// for tests, and know nothing of any one test.
//
// Runtime is a container runtime that speaks CRI v1: sandboxes, containers, images and
// an event stream, kept in memory, with no processes behind them. It is served over a
// unix socket as a real runtime is (Serve), or called without any transport (Conn),
// which also works in a testing/synctest bubble, where time is virtual.
//
// What it guarantees:
//   - a container goes through CRI's states as a real one does, and only forwards;
//   - a call that is told to fail, to be slow or to hang does so before it changes
//     anything, and obeys its context;
//   - state outlives the server, so that stopping and serving again is the restart of
//     a runtime whose containers ran on.
//
// What it leaves out: stats, checkpoints, and the streaming addresses of exec, attach
// and port-forward answer Unimplemented.
package fake
