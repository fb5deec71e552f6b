// Package process starts, watches and stops the programs of a rig.
//
// Its input is a Spec (program, arguments, log file, cgroups); its output is a
// Record, which names the started process in a way that survives the caller:
// the pid together with the process's start time, so that a pid that the
// kernel gave to somebody else is never mistaken for ours.
//
// Guarantees: a started program is in its cgroups before its first own
// instruction runs, has a session of its own, and outlives the caller. A
// signal goes through a pidfd whose process was compared with the record, so
// that it can't hit a stranger. Stop returns only when the process is gone or
// its context is done.
package process
