// Package peer identifies the process at the other end of a unix socket.
//
// A UID alone is not an identity, because a container can run as any user. A peer has the roles of its user only if
// its process runs in the cgroups of this process, in a configured cgroup, or in a pod that podsync admitted as a
// helper for that role. Root keeps its role everywhere on the host, but not in a pod.
//
// The kernel holds the process by a pidfd while its cgroups are read (Linux 6.5). Older kernels report only a PID:
// the process must then have the user of the peer and must not have changed between the checks. A process is refused if
// its main thread has exited, because /proc shows the cgroups of that thread.
package peer
