// Package rig runs a real Kubernetes control plane, container runtime and
// registry on this machine for one node, whose agent is a choice: microlet,
// the real kubelet, or none.
//
// Input: Options. Output: an Instance, whose accessors say where everything
// is, and whose methods stop and start single programs. Guarantees:
//
//   - every instance has its own folder, ports, subnets, bridge and cgroup, so
//     that instances run side by side; names are unique on the machine;
//   - what Up started outlives the caller, and Down or Clean of any later
//     process stops it, also when a program or the caller was killed before;
//   - a process is signalled only after its pid and start time were compared
//     with the record, or when the kernel says that it is in the instance's
//     cgroup;
//   - Leftovers asks the machine, not the records, what is left.
//
// It needs root. It switches net.ipv4.ip_forward on and leaves it on. All else
// that it changes on the machine goes with Down.
package rig
