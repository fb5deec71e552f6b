// Package supervisor keeps the processes of a node alive.
//
// Its job: start each service as its own process, start it again when it ends or hangs, and stop all
// in order. Its inputs are a Spec for each process and the sd_notify messages that the processes
// send. Its outputs are the processes, one log stream in which every line carries its service's
// name, and an account of each process.
//
// It guarantees that
//   - a process runs with the UID, groups, capabilities and environment of its Spec and no others, and
//     dies with the supervisor;
//   - one that ended is started again at once the first time, then after 0.1 to 1 s, and that this
//     is forgotten after 2 s of life; there is no limit to it;
//   - one whose WATCHDOG=1 stays out is killed and started again, but not when it was the supervisor
//     itself that stood still;
//   - one that was killed and does not end, because the kernel holds a thread of it, is told as such, and gets
//     a successor unless it holds what two cannot share;
//   - a notification counts only when the kernel says that the process itself sent it;
//   - no process that hangs or fails keeps another from being started, restarted or stopped.
package supervisor
