// Package process starts, watches and stops the programs of a rig.
//
// A Spec describes a program. A Record identifies the started process by its PID and start time, so another process
// with the same PID is never mistaken for it. A program is in its cgroups before its first instruction runs, has its
// own session, and outlives the caller. Signals go through a pidfd that was compared with the record. Stop returns
// when the process is gone or its context is done.
package process
