// Package unixgrpc provides gRPC over unix sockets, with the caller's identity from the kernel.
//
// It listens, dials, and checks who may call which method. A Policy grants each method to roles.
//
//   - It opens a socket only in a folder that other users cannot enter, and never takes it from a server that still
//     answers.
//   - It reads the UID and cgroups of every connection from the kernel and maps them to roles (package peer).
//   - It refuses a method unless the Policy grants it to a role of the caller. Refusals are counted and logged.
//   - A client calls only a server that has the requested role or is root on the host.
//   - A call without a deadline gets one.
//   - A server bounds the memory that the calls of one user take.
//
// In a process that holds several services, an InProcess network connects them, and a connection has the role of the
// service that opened it.
package unixgrpc
