// Package cgroup creates and removes the cgroups of a rig.
//
// It creates a cgroup such as /microlet-rig/a in every hierarchy of the machine, cgroup v1 or v2, usable as the
// parent of pods. In v2 it enables the controllers that a node agent needs. In v1, cpuset groups inherit the CPUs
// and memory nodes of their parents, because no process can enter them otherwise. Remove removes only what is below
// the path.
package cgroup
