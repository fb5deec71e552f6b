// Package unixgrpc is how the services of a node ask each other: gRPC over unix sockets, where the
// kernel says who the caller is.
//
// Its job: listen, dial, and decide who may call what. Its inputs are socket paths, the roles of
// package role and a Policy that gives each method to roles. Its outputs are listeners, servers and
// connections.
//
// It guarantees that
//   - a socket is only opened in a folder that strangers cannot enter, and never taken from a server
//     that still answers;
//   - every connection's UID and cgroups are read from the kernel at the handshake, and mapped to roles
//     (package peer); a message cannot claim another one, and a container that runs as a service's user
//     is a stranger;
//   - a method is refused unless the policy gives it to one of the caller's roles, and each refusal
//     is counted and logged;
//   - a client talks only to a server that has the role it asked for, or is root on the host;
//   - a call without a deadline gets one.
//
// In the single placement there are no other UIDs to tell apart: an InProcess network connects the
// services of one process, and the role of a connection is the one that opened it.
package unixgrpc
