// Package supervise keeps one program running, in place of systemd, where the rig runs a node agent.
//
// It restarts the program at once when it ends, and then with a growing delay until it has run for a while. It
// implements the receiving side of systemd's notification protocol (READY, STOPPING, WATCHDOG), and kills a program
// that sends no WATCHDOG. The status file always names the current process. At the end of the context, the program
// gets SIGTERM, and SIGKILL after the grace period. Where several programs that have the same fixed path run on one
// machine, each sees a folder of its own there. The package imports only the standard library, so its binary builds
// quickly.
package supervise
