// Package rig runs a real Kubernetes control plane, container runtime and registry for one node on this machine.
//
// The node agent is microlet, the real kubelet, or none. Up returns an Instance, which knows its paths and stops and
// starts single programs. The package needs root. It sets net.ipv4.ip_forward and does not set it back. Down removes
// everything else.
//
//   - Every instance has its own folder, ports, subnets, bridge and cgroup, so instances can run side by side. Names
//     are unique on the machine.
//   - What Up started outlives the caller. Down or Clean of a later process stops it, even after a crash.
//   - A process gets a signal only if its PID and start time match the record, or if it is in the cgroup of the
//     instance.
//   - Leftovers asks the machine, not the records.
package rig
