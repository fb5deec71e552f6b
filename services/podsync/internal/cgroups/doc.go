// Package cgroups manages the part of the node's cgroup tree that contains the pods.
//
// It creates the root "kubepods", the QoS classes "burstable" and "besteffort" below it, and a cgroup "pod<uid>" for
// each pod. Names, shares, quotas and limits are the kubelet's, so a node can move between the two agents while its
// containers run. It returns the cgroup_parent of a sandbox for CRI. Every call is idempotent. It never recreates or
// empties an existing cgroup and changes nothing outside its root. It works with cgroup v1 and v2 and with the
// drivers cgroupfs and systemd.
package cgroups
