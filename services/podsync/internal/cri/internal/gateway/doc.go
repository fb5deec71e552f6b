// Package gateway serves CRI v1 to the other services, one socket per role, because only podsync opens the runtime's
// socket.
//
// It passes requests and responses on byte for byte, with deadlines, metadata, error codes and streams. It decodes
// only requests that could do more than their role may (see checks in methods.go).
//
//   - A role may call only what Methods grants it. A new CRI method is denied until it is granted.
//   - prober runs only the exec probes of a container, in that container, and no longer than the probe may take.
//   - A checkpoint goes into a new file in the checkpoint folder, with the kubelet's name. No role sees a verbose
//     status.
//   - On the socket of a role, root may do no more than the role (package unixgrpc).
//   - A role has a bounded number of answers at one time, until they are read (see places).
//   - Callers share the response of a list only if all asked before the call was sent to the runtime (see joiner).
//     podsync's own reads do not use the gateway and are never shared.
package gateway
