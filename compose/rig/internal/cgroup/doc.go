// Package cgroup makes and removes the cgroups of a rig.
//
// Input: a cgroup's path, such as /microlet-rig/a. Output: that cgroup in
// every hierarchy of the machine, cgroup v1 or v2, usable as the parent of
// pods. Guarantees: in v2 the controllers that a node agent needs are enabled
// down to the path; in v1 cpuset groups inherit their parent's CPUs and memory
// nodes, without which no process may enter. Remove takes away only what is
// below the path.
package cgroup
