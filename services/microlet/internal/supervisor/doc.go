// Package supervisor keeps the processes of a node running.
//
// It starts each service as a process with the UID, groups, capabilities and environment of its Spec. It restarts a
// process that exits: at once the first time, then after 0.1 to 1 s, without a maximum number of restarts. After 2 s
// of life the delay is reset. It kills and restarts a process that sends no WATCHDOG=1, unless the supervisor itself
// stood still. If the kernel does not let a killed process end, the supervisor reports it as stuck and starts a
// successor, unless two such processes cannot run at once.
//
// The supervisor accepts a notification only if the kernel says that the process itself sent it. All processes end
// with the supervisor. A process that hangs or fails does not delay another. All logs become one stream, and each
// line names its service.
package supervisor
