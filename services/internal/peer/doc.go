// Package peer says who is at the other end of a unix socket.
//
// Its job: turn a connection into the roles that the other process may act as. Its inputs are the connection,
// the kernel's word for who opened its other end, that process's cgroups, and the helper pods that podsync has
// admitted. Its output is a Peer.
//
// A user id alone is no identity, since a container may run as any: an image, a runAsUser or an fsGroup is
// enough. So a peer has the roles of its user only if it also lives where those roles do:
//   - in the cgroups of this very process, which are those of the supervisor or of its unit;
//   - in a cgroup that was configured, for services that are units of their own;
//   - or in a pod that podsync has admitted as a helper for that role.
//
// Root is itself wherever it lives on the host, so that an operator's tools work, but not in a pod.
//
// It guarantees that the process that is judged is the one that connected: the kernel holds it by a pidfd
// (Linux 6.5 and newer) while its cgroups are read. Older kernels say a number alone; then the process
// must have the peer's user, must have been there when it was asked for, and must still be the same afterwards.
// A process whose main thread has exited is refused either way, since /proc shows that thread's cgroups.
package peer
