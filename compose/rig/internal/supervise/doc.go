// Package supervise keeps one program running: it stands in for systemd
// where the rig runs a node agent.
//
// Input: a command line, a status file and optionally a watchdog interval.
// Output: the program runs; when it ends, it is started again at once, and
// after that with a growing pause until it has lived for a while. The status
// file always says which process it is now. Guarantees: it speaks the
// receiving side of systemd's notification protocol (READY, STOPPING,
// WATCHDOG), and kills a program whose watchdog messages stop; on the end of
// its context the program gets SIGTERM, and SIGKILL after the grace period.
//
// It imports the standard library only, so that its binary builds in a moment
// and needs no key of the rig's dependencies.
package supervise
